//! Limits of a queue in all processes together, for the libraries that have them for free.

use super::measure::{PATIENCE, Rows, Sizes, rate};
use super::peer::{Peer, run};
use super::worker::{Run, Worker};
use crate::measure::{Result, Times, medians};
use crate::store::Store;
use crate::table::grouped;

const HAVE_LIMITS: [&str; 2] = ["dq", "bullmq"];
const TURNS: usize = 5;
const RUN_MILLIS: u64 = 20;

/// Maximum running jobs and starts a second: none, and such that do not bind.
const NOT_BINDING: [[u32; 2]; 3] = [[0, 0], [1_000, 0], [0, 10_000]];

pub(super) fn limits(peer: &Peer, store: &Store, sizes: &Sizes, _: bool) -> Result<Rows> {
    if !HAVE_LIMITS.contains(&peer.name) {
        return Ok(Vec::new());
    }
    let [without, running, started] = medians(TURNS, |_turn| {
        let mut rates = [0.0; NOT_BINDING.len()];
        for (limits, measured) in NOT_BINDING.into_iter().zip(&mut rates) {
            prepare(peer, store, limits, sizes.limited)?;
            *measured =
                rate(&Worker::start(peer, &store.address(), 0)?.runs(sizes.limited, PATIENCE))?;
        }
        Ok([rates[0], rates[1] / rates[0], rates[2] / rates[0]])
    })?;
    let (times, crossings) = freed_slots(peer, store, sizes.slots)?;
    let [p50, p99] = [0.5, 0.99].map(|share| times.millis_at(share));
    Ok(vec![
        ("no limit, empty handlers, jobs/s".to_owned(), grouped(without)),
        ("… with 1,000 running jobs at most, ratio".to_owned(), format!("{running:.2}")),
        ("… with 10,000 starts a second at most, ratio".to_owned(), format!("{started:.2}")),
        (
            "one slot, two workers, end to next start: p50 / p99, ms (by the other worker)"
                .to_owned(),
            format!("{p50:.1} / {p99:.1} ({crossings} of {})", sizes.slots - 1),
        ),
    ])
}

fn prepare(peer: &Peer, store: &Store, limits: [u32; 2], jobs: usize) -> Result<()> {
    store.fresh()?;
    let address = store.address();
    run(peer.command("limit", &address).args(limits.map(|limit| limit.to_string())))?;
    peer.store(&address, jobs, "bulk", 0, 0).map(drop)
}

/// How long a slot stays free, and how often the other of two workers takes it.
fn freed_slots(peer: &Peer, store: &Store, jobs: usize) -> Result<(Times, usize)> {
    prepare(peer, store, [1, 0], jobs)?;
    let address = store.address();
    let workers = [(); 2].map(|()| Worker::start(peer, &address, RUN_MILLIS));
    let mut runs: Vec<(usize, Run)> = Vec::new();
    let workers: Vec<Worker> = workers.into_iter().collect::<Result<_>>()?;
    while runs.len() < jobs {
        let before = runs.len();
        for (number, worker) in workers.iter().enumerate() {
            let seen = worker.runs(1, std::time::Duration::from_secs(5));
            runs.extend(seen.into_iter().map(|run| (number, run)));
        }
        if runs.len() == before {
            return Err(format!("{} has run {before} of {jobs} jobs", peer.name).into());
        }
    }
    runs.sort_unstable_by_key(|(_, run)| run.started);
    let crossings = runs.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    let free = runs.windows(2).map(|pair| {
        let micros = (pair[1].1.started - pair[0].1.started).unsigned_abs();
        std::time::Duration::from_micros(micros.saturating_sub(RUN_MILLIS * 1_000))
    });
    Ok((Times::new(free.collect()), crossings))
}
