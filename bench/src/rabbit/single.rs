//! One caller that schedules jobs one by one and waits for each reply. The reference publishes raw
//! messages and waits for each confirm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::raw::Raw;
use super::server::RabbitServer;
use super::store::{self, HOUR};
use crate::measure::{io_runtime, median, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

/// Jobs per turn. Turns are short so that other load on the machine affects both sides.
const TURN: usize = 100;

/// For so short a delay, the backend only writes the log and publishes no message.
const SHORT: Duration = Duration::from_millis(500);

/// Share of the raw rate. The goal is parity; 5 % allow for noise.
const TARGET: f64 = 0.95;

pub(super) fn measure(plan: &Plan, server: &RabbitServer) -> Result<Vec<Figure>> {
    let vhost = server.vhost();
    let runtime = io_runtime();
    let backend = runtime.block_on(store::open(vhost.url()))?;
    let raw = Arc::new(runtime.block_on(Raw::connect(vhost.url()))?);
    let mut workload = store::keyless_with_seed(22);
    // Both spawned, as in an application: on the `block_on` thread, each reply also wakes that
    // thread.
    let run_raw = || {
        let raw = Arc::clone(&raw);
        runtime.block_on(async { tokio::spawn(async move { raw.publish(TURN, 1).await }).await? })
    };
    let mut run = |delay: Duration| {
        let jobs = store::after(&mut workload, delay, TURN);
        let backend = backend.clone();
        let schedule = async move {
            let start = Instant::now();
            for job in jobs {
                let _ = backend.schedule(vec![job]).await?;
            }
            Result::Ok(start.elapsed())
        };
        runtime.block_on(async { tokio::spawn(schedule).await? })
    };
    let mut shares = [Vec::new(), Vec::new()];
    let mut rates = [Vec::new(), Vec::new()];
    // The first turn is a warm-up.
    for turn in 0..=plan.full_or_quick(21, 3) {
        for (row, delay) in [HOUR, SHORT].into_iter().enumerate() {
            let bare = run_raw()?;
            let own = run(delay)?;
            if turn > 0 {
                rates[row].push(rate(TURN, own));
                shares[row].push(bare.as_secs_f64() / own.as_secs_f64());
            }
        }
    }
    runtime.block_on(async {
        backend.close().await?;
        raw.close().await
    })?;
    let names = ["due in an hour", "due in half a second"];
    let figure = |((name, rates), shares)| {
        let (rate, share) = (median(rates), median(shares));
        progress(format_args!("one caller, {name}: {rate:.0} jobs/s, {share:.2} of raw"));
        Figure::new(format!("schedule, one caller, {name}"), rate, "jobs/s")
            .compared_to(rate / share, "raw")
            .ratio_at_least(TARGET)
    };
    Ok(names.into_iter().zip(rates).zip(shares).map(figure).collect())
}
