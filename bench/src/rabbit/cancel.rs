//! Time until a cancellation takes effect in another process. A second backend, with its own
//! connections and log replica, stands for that process.

use std::time::{Duration, Instant};

use dq::{JobRef, QueueName};

use super::server::RabbitServer;
use super::store::{self, HOUR, next_due};
use crate::measure::{Times, io_runtime};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::QUEUE;

/// Milliseconds at the 99th percentile.
const TARGET: f64 = 10.0;

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let count = plan.full_or_quick(2_000, 200);
    let vhost = server.vhost();
    let (replies, effects) = io_runtime().block_on(async {
        let here = store::open(vhost.url()).await?;
        let there = store::open(vhost.url()).await?;
        let mut workload = store::keyless_with_seed(25);
        let (mut replies, mut effects) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let job = store::after(&mut workload, HOUR, 1).remove(0);
            let job_ref = JobRef::new(QueueName::new(QUEUE)?, job.id);
            let _ = here.schedule(vec![job]).await?;
            // The first poll also opens the log there: a process without claims has no replica.
            while next_due(&*there).await?.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let start = Instant::now();
            let canceller = here.clone();
            let cancelling = tokio::spawn(async move {
                canceller.cancel(&[job_ref]).await?;
                Result::Ok(start.elapsed())
            });
            while next_due(&*there).await?.is_some() {
                tokio::task::yield_now().await;
            }
            effects.push(start.elapsed());
            replies.push(cancelling.await??);
        }
        here.close().await?;
        there.close().await?;
        Result::Ok((Times::new(replies), Times::new(effects)))
    })?;
    progress(format_args!(
        "cancel: answered p50 {:.2} ms, p99 {:.2} ms; effective elsewhere p50 {:.2} ms, p99 {:.2} ms",
        replies.millis_at(0.5),
        replies.millis_at(0.99),
        effects.millis_at(0.5),
        effects.millis_at(0.99)
    ));
    let name = "cancel, effective in another process";
    Ok(vec![
        Figure::new(format!("{name}: p50"), effects.millis_at(0.5), "ms"),
        Figure::new(format!("{name}: p99"), effects.millis_at(0.99), "ms").at_most(TARGET),
        Figure::new("cancel, answered: p99", replies.millis_at(0.99), "ms"),
    ])
}
