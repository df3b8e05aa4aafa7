//! Time until a cancellation takes effect in another process. A second backend, which has its own
//! connections and its own replica of the log, stands for that process.

use std::time::{Duration, Instant};

use dq::{JobRef, QueueName};

use super::server::RabbitServer;
use super::store::{self, HOUR, next_due};
use crate::measure::{Times, io_runtime};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::QUEUE;

/// Target of the 99th percentile in milliseconds.
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
            // The first time, this also opens the log there: a process that has claimed nothing has no
            // replica.
            while next_due(&*there).await?.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let start = Instant::now();
            let canceller = here.clone();
            let cancelling = tokio::spawn(async move {
                canceller.cancel(&[job_ref]).await?;
                Result::Ok(start.elapsed())
            });
            // Polls the replica, but yields to other tasks in between.
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
