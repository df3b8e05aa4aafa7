//! A report every two seconds, by any number of processes: start it several times on one file. Kill
//! one at any moment, even with `kill -9`: each occurrence is still one job. If no process ran, the
//! next start makes up for the last minute, with at most ten reports.

use clap::Parser;
use dq::prelude::*;

#[derive(Parser)]
struct Options {
    /// URL of the store.
    #[arg(long, default_value = "sqlite://recurring.db")]
    backend: String,
    /// Ends after this many reports; by default at Ctrl-C.
    #[arg(long)]
    reports: Option<usize>,
}

/// Prints one report. The runner stores this schedule when it starts. In your application, you may
/// replace `every` with `cron = "30 2 * * MON-FRI", tz = "Europe/Stockholm"`.
#[delay_handler("EXAMPLE_REPORT", every = "2s", catch_up = "all:10", deadline = "1m")]
async fn report(
    ctx: JobContext,
    State(done): State<tokio::sync::mpsc::Sender<()>>,
) -> HandlerResult {
    let occurrence = ctx.occurrence().ok_or("not the job of a schedule")?;
    println!("report of {occurrence}, {} ms late", ctx.lateness().as_millis());
    // This fails if the program is ending, and then nobody counts.
    let _ = done.try_send(());
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let Options { backend, reports } = Options::parse();
    let dq = Dq::connect(&backend).await?;
    let (done, mut reported) = tokio::sync::mpsc::channel::<()>(100);
    let enough = async {
        for _ in 0..reports.unwrap_or(usize::MAX) {
            reported.recv().await;
        }
    };
    let stop = async { tokio::select!(() = enough => {}, () = dq::shutdown_signal() => {}) };
    dq.runner().state(done).run_until(stop).await?;
    for schedule in dq.schedules().await? {
        println!("next: {} at {}", schedule.name, schedule.next_due);
    }
    dq.close().await
}
