//! Many jobs due in the same millisecond: how fast they run, and how long the longest call blocks
//! the server.

use std::time::{Duration, SystemTime};

use super::server::RedisServer;
use super::store::RedisStore;
use crate::lateness::{now, schedule};
use crate::measure::{io_runtime, millis, rate};
use crate::plan::{Plan, Result, progress};
use crate::probe::Probe;
use crate::table::Figure;

const LONGEST_TARGET: Duration = Duration::from_millis(5);

pub(super) fn measure(
    plan: &Plan,
    server: &RedisServer,
    store: &RedisStore,
) -> Result<Vec<Figure>> {
    server.clear();
    let jobs = plan.full_or_quick(100_000, 2_000);
    let lead = plan.full_or_quick(Duration::from_secs(4), Duration::from_secs(1));
    let runtime = io_runtime();
    let dq = runtime.block_on(store.dq(server))?;
    let drained = runtime.block_on(async {
        let due = now() + lead;
        schedule(&dq, jobs, |_| due).await?;
        if now() > due {
            return Err("the jobs were due before the last was stored".into());
        }
        // Only the longest call is reported, so skip short ones.
        server.record_calls(Duration::from_micros(200));
        // Spawned, as in an application.
        tokio::spawn(async move {
            Probe::counting(jobs).run(&dq).await?;
            let drained_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            dq.close().await?;
            let due = Duration::from_millis(due.as_millis().unsigned_abs());
            Result::Ok(drained_at.saturating_sub(due))
        })
        .await?
    })?;
    let calls = server.recorded_calls();
    let longest = calls.last().copied().unwrap_or_default();
    progress(format_args!(
        "{}: {jobs} at once in {:.2} s; longest call {:.2} ms",
        store.name,
        drained.as_secs_f64(),
        millis(longest)
    ));
    let name = format!("{}, {jobs} due at once", store.name);
    Ok(vec![
        Figure::new(format!("{name}: drained"), rate(jobs, drained), "jobs/s"),
        Figure::new(format!("{name}: longest call"), millis(longest), "ms")
            .at_most(millis(LONGEST_TARGET)),
    ])
}
