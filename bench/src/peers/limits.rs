//! Limits of a queue in all processes together, for the libraries that have them in their free
//! edition.

use std::time::{Duration, Instant};

use super::measure::{PATIENCE, Rows, Sizes, rate};
use super::peer::Peer;
use super::run::run;
use super::worker::Worker;
use crate::measure::{Result, Times, medians};
use crate::store::Store;
use crate::table::grouped;

const HAVE_LIMITS: [&str; 2] = ["dq", "bullmq"];
const TURNS: usize = 5;
const RUN_MILLIS: u64 = 20;

/// Maximum running jobs and starts a second: none, and such that do not bind: `Sizes::limited` is
/// no more than a second's starts.
const NOT_BINDING: [[u32; 2]; 3] = [[0, 0], [1_000, 0], [0, 10_000]];

pub(super) fn limits(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    if !HAVE_LIMITS.contains(&peer.name) {
        return Ok(Vec::new());
    }
    let [without, running, started] = medians(TURNS, |_turn| {
        let mut rates = [0.0; NOT_BINDING.len()];
        for (limits, measured) in NOT_BINDING.into_iter().zip(&mut rates) {
            store.fresh()?;
            prepare(peer, &store.address(), limits, sizes.limited)?;
            let worker = Worker::start(peer, &store.address(), 0)?;
            let runs = worker.runs(sizes.limited, PATIENCE);
            if runs.len() < sizes.limited {
                let (ran, name) = (runs.len(), peer.name);
                return Err(format!("{name} has run {ran} of {} jobs", sizes.limited).into());
            }
            *measured = rate(&runs)?;
        }
        Ok([rates[0], rates[1] / rates[0], rates[2] / rates[0]])
    })?;
    store.fresh()?;
    let slots = freed_slots(peer, &store.address(), sizes.slots)?;
    let by_other = slots.iter().filter(|(_, by_other)| *by_other).count();
    let times = Times::new(slots.into_iter().map(|(free, _)| free).collect());
    let [p50, p99] = [0.5, 0.99].map(|share| times.millis_at(share));
    Ok(vec![
        ("no limit, empty handlers, jobs/s".to_owned(), grouped(without)),
        ("… with 1,000 running jobs at most, ratio".to_owned(), format!("{running:.2}")),
        ("… with 10,000 starts a second at most, ratio".to_owned(), format!("{started:.2}")),
        (
            "one slot, two workers, end to next start: p50 / p99, ms (by the other worker)"
                .to_owned(),
            format!("{p50:.1} / {p99:.1} ({by_other} of {})", sizes.slots - 1),
        ),
    ])
}

fn prepare(peer: &Peer, address: &str, limits: [u32; 2], jobs: usize) -> Result<()> {
    // Even a limit of 0 would make dq's claims look at limits.
    if limits != NOT_BINDING[0] {
        run(peer.command("limit", address).args(limits.map(|limit| limit.to_string())))?;
    }
    peer.store(address, jobs, "bulk", 0, 0).map(drop)
}

/// How long the only slot was free each time, and whether the other of two workers took it.
fn freed_slots(peer: &Peer, address: &str, jobs: usize) -> Result<Vec<(Duration, bool)>> {
    prepare(peer, address, [1, 0], jobs)?;
    let workers = [0, 1].map(|_| Worker::start(peer, address, RUN_MILLIS));
    let workers: Vec<Worker> = workers.into_iter().collect::<Result<_>>()?;
    let mut runs: Vec<(i64, usize)> = Vec::new();
    let begin = Instant::now();
    while runs.len() < jobs {
        for (number, worker) in workers.iter().enumerate() {
            // Also what a worker has printed while the other was read.
            let seen = worker.runs(jobs, Duration::from_secs(1));
            runs.extend(seen.into_iter().map(|run| (run.started, number)));
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("{} has run {} of {jobs} jobs", peer.name, runs.len()).into());
        }
    }
    runs.sort_unstable();
    let freed = runs.windows(2).map(|pair| {
        let [(started, worker), (next, other)] = [pair[0], pair[1]];
        let between = Duration::from_micros((next - started).unsigned_abs());
        // Some peers' clocks and timers count whole milliseconds.
        if between + Duration::from_millis(2) < Duration::from_millis(RUN_MILLIS) {
            return Err(format!("{} ran two jobs at once in one slot", peer.name).into());
        }
        Ok((between.saturating_sub(Duration::from_millis(RUN_MILLIS)), worker != other))
    });
    freed.collect()
}
