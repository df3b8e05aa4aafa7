//! Waits for the signals that stop a process.

/// Completes when the process is asked to stop.
///
/// Listens for Ctrl-C and, on Unix, for SIGTERM, which service managers and container runtimes
/// send.
///
/// ```no_run
/// # async fn example(dq: dq_core::Dq) -> dq_core::Result<()> {
/// dq.runner().run_until(dq_core::shutdown_signal()).await?;
/// dq.close().await
/// # }
/// ```
///
/// A signal completes every future polled before it, so a server and a runner can each wait for
/// one. A future polled later waits for the next signal. After the first poll these signals no
/// longer end the process.
///
/// If the process cannot listen for a signal, the future logs an error and never completes for it.
///
/// # Panics
/// Panics if polled outside a Tokio runtime with I/O enabled; `#[tokio::main]` enables it.
pub async fn shutdown_signal() {
    let interrupt = async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            never("Ctrl-C", &error).await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(error) => never("SIGTERM", &error).await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}

async fn never(signal: &str, error: &std::io::Error) {
    tracing::error!(%error, "the process cannot listen for {signal}, so it does not stop the runner");
    std::future::pending().await
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Both signals go to this process, which handles them from then on.
    #[tokio::test]
    async fn every_waiting_future_completes_at_either_signal() {
        for name in ["INT", "TERM"] {
            let (mut first, mut second) =
                (Box::pin(shutdown_signal()), Box::pin(shutdown_signal()));
            // The first poll installs the handlers; before it, the signal ends the process.
            assert!(futures_util::poll!(&mut first).is_pending());
            assert!(futures_util::poll!(&mut second).is_pending());
            let mut shell = std::process::Command::new("sh");
            let pid = std::process::id().to_string();
            shell.args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &pid]);
            assert!(shell.status().unwrap().success());
            first.await;
            second.await;
        }
    }
}
