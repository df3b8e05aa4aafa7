//! Stops at SIGTERM, which Kubernetes, Docker and systemd send: no new job starts, and running jobs
//! may finish. A job that takes longer goes back to the store. The next start goes on with the
//! rest.
//!
//! ```sh
//! cargo run -p dq-examples --example graceful_shutdown   # press Ctrl-C, and start it again
//! ```

use std::time::Duration;

use clap::Parser;
use dq::Event;
use dq::prelude::*;
use dq_examples::all_ended;
use dq_ops::Ops;
use dq_web::Auth;
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
struct Options {
    /// Seconds that a job takes.
    #[arg(long, default_value_t = 2)]
    work: u64,
    /// Seconds in which running jobs may finish. Kubernetes kills the process after
    /// `terminationGracePeriodSeconds`: set at least 5 more there.
    #[arg(long, default_value_t = 25)]
    grace: u64,
    /// Address of the probes: 0.0.0.0:8080 in a container. Port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

/// One at a time, so that some still wait when the signal comes.
#[delay_handler("CONVERT_VIDEO", concurrency = 1)]
async fn convert(State(work): State<Duration>, video: u32) {
    println!("video {video}: starts");
    tokio::time::sleep(work).await;
    println!("video {video}: done");
}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let Options { work, grace, listen } = Options::parse();
    let dq = Dq::connect("sqlite://videos.db").await?;
    let queue = dq.queue_of::<convert>()?;
    if queue.stats().await?.live() == 0 {
        dq.schedule_many((1..=3).map(|video| dq.schedule::<convert>(video))).await?;
    }

    // One signal stops the server and the runner. This example stops after the last job, too.
    let stop = CancellationToken::new();
    let (signal, ended) = (stop.clone(), all_ended(queue.clone()));
    tokio::spawn(async move {
        tokio::select!(() = dq::shutdown_signal() => {}, () = ended => {});
        signal.cancel();
    });

    // Has the probes: `/ops/dq/healthz` answers while the process lives, `/ops/dq/readyz` while the
    // store answers, too. The stopped server refuses connections, so the process is not ready.
    let listener = tokio::net::TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    println!("listening on http://{}", listener.local_addr()?);
    let dashboard = dq_web::router(Ops::new(dq.clone()), Auth::loopback());
    let app = axum::Router::new().nest_service("/ops/dq", dashboard);
    let server = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());

    let runner = dq.runner().state(work.seconds()).grace(grace.seconds());
    let runner = runner.observer(|event: &Event<'_>| {
        if let Event::Stopping { running } = event {
            println!("stopping, {running} running");
        }
    });
    let server = async { HandlerResult::Ok(server.await?) };
    tokio::try_join!(server, async { Ok(runner.run_until(stop.cancelled()).await?) })?;
    println!("{} jobs wait for the next start", queue.stats().await?.ready);
    Ok(dq.close().await?)
}
