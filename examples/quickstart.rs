//! Schedules jobs a few seconds ahead and runs them when they are due. Kill it at any moment, even
//! with `kill -9`, and start it again: it continues with the remaining jobs.

use clap::Parser;
use dq::prelude::*;

#[derive(Parser)]
struct Options {
    /// Number of jobs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// Seconds until the last job is due.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=3_600))]
    within: u64,
    /// URL of the store.
    #[arg(long, default_value = "sqlite://quickstart.db")]
    backend: String,
}

/// Prints a line. With the short lease, a killed runner's job soon runs again.
#[delay_handler("QUICKSTART", lease = "2s")]
async fn greet(ctx: JobContext, number: u32) {
    let again = if ctx.deliveries() > 1 { " (again: its runner was killed)" } else { "" };
    println!("  job {number} fired {} ms late{again}", ctx.lateness().as_millis());
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let Options { jobs, within, backend } = Options::parse();
    let dq = Dq::connect(&backend).await?;
    let queue = dq.queue_of::<greet>()?;
    let left = queue.stats().await?.live();
    if left > 0 {
        println!("found {left} jobs from before");
    } else {
        let job = |number| dq.schedule::<greet>(number).after(within.seconds() * number / jobs);
        println!("scheduled {} jobs", dq.schedule_many((1..=jobs).map(job)).await?.len());
    }
    let finished = async {
        while !queue.stats().await.is_ok_and(|stats| stats.live() == 0) {
            tokio::time::sleep(50.millis()).await;
        }
    };
    let stop = async { tokio::select!(() = finished => {}, () = dq::shutdown_signal() => {}) };
    dq.runner().run_until(stop).await?;
    println!("{} jobs left for the next start", queue.stats().await?.live());
    dq.close().await
}
