//! A long export with checkpoints. Kill it at any moment, even with `kill -9`, and start it again:
//! it goes on with the part in which it was killed.
//!
//! ```sh
//! cargo run -p dq-examples --example long_running_job
//! ```

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

const ROWS: u32 = 4_000;

#[derive(Serialize, Deserialize)]
struct Export {
    next_row: u32,
}

/// Each part is a step of one job, so the store has the next row after each. A step has a timeout
/// and attempts of its own.
///
/// A running part keeps its lease, because the runner renews it. The lease is how long another
/// process waits before it takes over from a killed one.
#[delay_handler("EXPORT", timeout = "10m", lease = "5s")]
async fn export(export: Export) -> HandlerResult {
    let next_row = export.next_row + 1_000;
    println!("rows {} to {next_row}", export.next_row);
    tokio::time::sleep(300.millis()).await; // the work
    if next_row == ROWS {
        println!("exported");
        return Ok(Outcome::Done);
    }
    Ok(Outcome::again(0.seconds(), &Export { next_row })?)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("sqlite://export.db").await?;
    // At a second start, the job with this key is kept.
    let _ = dq.schedule::<export>(Export { next_row: 0 }).key("export-7").await?;
    if let Some(view) = dq.get::<export>("export-7").await? {
        let progress: Export = view.payload()?;
        println!("{} of {ROWS} rows are exported", progress.next_row);
    }
    let ended = all_ended(dq.queue_of::<export>()?);
    dq.runner().run_until(ended).await?;
    dq.close().await
}
