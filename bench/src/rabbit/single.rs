//! One caller that waits for each job, beside one that waits for each raw message.

use std::time::{Duration, Instant};

use super::raw::Raw;
use super::server::Server;
use super::store::{self, HOUR};
use crate::measure::io_runtime;
use crate::measure::{median, rate};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

/// Jobs of one spell. Short, so that what the machine does besides meets both sides.
const SPELL: usize = 100;

/// Due sooner than a carrier is of use.
const SHORT: Duration = Duration::from_millis(500);

/// What is meant by "as fast as raw", on a machine on which no two spells are alike.
const AIM: f64 = 0.95;

pub(super) fn measure(plan: &Plan, server: &Server) -> Result<Vec<Figure>> {
    let vhost = server.vhost();
    let runtime = io_runtime();
    let backend = runtime.block_on(store::open(vhost.url()))?;
    let raw = runtime.block_on(Raw::connect(vhost.url()))?;
    let mut workload = store::plain(22);
    let mut spell = |delay: Option<Duration>| match delay {
        None => runtime.block_on(raw.publish(SPELL, 1)),
        Some(delay) => {
            let jobs = store::after(&mut workload, delay, SPELL);
            let backend = backend.clone();
            let schedule = async move {
                let began = Instant::now();
                for job in jobs {
                    let _ = backend.schedule(vec![job]).await?;
                }
                Result::Ok(began.elapsed())
            };
            runtime.block_on(async { tokio::spawn(schedule).await? })
        }
    };
    let mut shares = [Vec::new(), Vec::new()];
    let mut rates = [Vec::new(), Vec::new()];
    for turn in 0..=plan.size(21, 3) {
        for (place, delay) in [HOUR, SHORT].into_iter().enumerate() {
            let bare = spell(None)?;
            let own = spell(Some(delay))?;
            if turn > 0 {
                rates[place].push(rate(SPELL, own));
                shares[place].push(bare.as_secs_f64() / own.as_secs_f64());
            }
        }
    }
    runtime.block_on(async {
        backend.close().await?;
        raw.close().await
    })?;
    let names = ["due in an hour", "due in half a second"];
    let row = |((name, rates), shares)| {
        let (rate, share) = (median(rates), median(shares));
        progress(format_args!("one caller, {name}: {rate:.0} jobs/s, {share:.2} of raw"));
        Figure::new(format!("schedule, one caller, {name}"), rate, "jobs/s")
            .over(rate / share, "raw")
            .ratio_at_least(AIM)
    };
    Ok(names.into_iter().zip(rates).zip(shares).map(row).collect())
}
