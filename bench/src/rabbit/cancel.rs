//! How soon a cancel counts everywhere.

use std::time::{Duration, Instant};

use dq::{JobRef, QueueName};

use super::server::Server;
use super::store::{self, HOUR, next_due};
use crate::measure::Times;
use crate::measure::io_runtime;
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::QUEUE;

/// In milliseconds, of the 99th percentile.
const AIM: f64 = 10.0;

pub(super) fn measure(plan: &Plan, server: &Server) -> Result<Vec<Figure>> {
    let count = plan.size(2_000, 200);
    let vhost = server.vhost();
    let (answers, effects) = io_runtime().block_on(async {
        let here = store::open(vhost.url()).await?;
        let there = store::open(vhost.url()).await?;
        let mut workload = store::plain(25);
        let (mut answers, mut effects) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let job = store::after(&mut workload, HOUR, 1).remove(0);
            let named = JobRef::new(QueueName::new(QUEUE)?, job.id);
            let _ = here.schedule(vec![job]).await?;
            while next_due(&*there).await?.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let began = Instant::now();
            let canceller = here.clone();
            let cancelling = tokio::spawn(async move {
                canceller.cancel(&[named]).await?;
                Result::Ok(began.elapsed())
            });
            // It looks at its replica over and over, but lets others work between.
            while next_due(&*there).await?.is_some() {
                tokio::task::yield_now().await;
            }
            effects.push(began.elapsed());
            answers.push(cancelling.await??);
        }
        here.close().await?;
        there.close().await?;
        Result::Ok((Times::new(answers), Times::new(effects)))
    })?;
    progress(format_args!(
        "cancel: answered p50 {:.2} ms, p99 {:.2} ms; effective elsewhere p50 {:.2} ms, p99 {:.2} ms",
        answers.millis_at(0.5),
        answers.millis_at(0.99),
        effects.millis_at(0.5),
        effects.millis_at(0.99)
    ));
    let name = "cancel, effective in another process";
    Ok(vec![
        Figure::new(format!("{name}: p50"), effects.millis_at(0.5), "ms"),
        Figure::new(format!("{name}: p99"), effects.millis_at(0.99), "ms").at_most(AIM),
        Figure::new("cancel, answered: p99", answers.millis_at(0.99), "ms"),
    ])
}
