//! The signals by which a process is asked to stop.

/// Completes when the process is asked to stop: by Ctrl-C or, on Unix, by SIGTERM, which service
/// managers and container runtimes send.
///
/// ```no_run
/// # async fn example(dq: dq_core::Dq) -> dq_core::Result<()> {
/// dq.runner().run_until(dq_core::shutdown_signal()).await?;
/// dq.close().await
/// # }
/// ```
///
/// All futures of this function that were polled before the signal complete, so a server and a
/// runner can wait for one each; one that is polled later waits for another signal. Once one was
/// polled, these signals no longer end the process by themselves.
///
/// A signal that the process cannot listen for is logged as an error and never completes the
/// future.
///
/// # Panics
/// If it is polled outside a Tokio runtime whose I/O is enabled, as `#[tokio::main]` does.
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

/// Logs that the process cannot listen for a signal, and never returns.
async fn never(signal: &str, error: &std::io::Error) {
    tracing::error!(%error, "the process cannot listen for {signal}, so it does not stop the runner");
    std::future::pending().await
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Both signals are sent to this process, which handles them from then on.
    #[tokio::test]
    async fn every_waiting_future_completes_at_either_signal() {
        for name in ["INT", "TERM"] {
            let (mut first, mut second) =
                (Box::pin(shutdown_signal()), Box::pin(shutdown_signal()));
            // The first poll installs the handlers; before that the signal would end the process.
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
