//! A runner that aborts at its n-th event, on a store with one job per [`Plan`]. The trial repeats
//! this in new processes, and n grows by two until one runs to its end. One trial begins at 1 and
//! one at 2, so together they cover every n, also moments that no named point has.

use std::path::Path;

use dq::JobId;
use libtest_mimic::{Failed, Trial};

use crate::points::{count_stored, ensure};
use crate::process::{Plan, Point, Start, aborted, connect, faulty, spawn, starts};

const PLANS: [Plan; 7] = [
    Plan::Succeed,
    Plan::FailAtFirst,
    Plan::SnoozeAtFirst,
    Plan::Again,
    Plan::Skip,
    Plan::Reject,
    Plan::AbortAtFirst,
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |first| {
        Trial::test(format!("killed_at/every_other_event_from_{first}"), move || {
            abort_at_every_other_event(first)
        })
    };
    vec![trial(1), trial(2)]
}

#[tokio::main(flavor = "current_thread")]
async fn abort_at_every_other_event(first: u64) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dq = connect(dir.path()).await?;
    let jobs = dq.schedule_many(PLANS.map(|plan| dq.schedule::<faulty>(plan))).await?;
    dq.close().await?;

    let mut crashes = 0;
    for event in (first..).step_by(2) {
        let ended = spawn(dir.path(), Some(Point::Event(event)));
        if ended.success() {
            break;
        }
        ensure(aborted(ended), format!("the runner failed instead of aborting: {ended}"))?;
        crashes += 1;
        count_stored_in(dir.path()).await?;
    }
    ensure(crashes >= 5, format!("only {crashes} crashes, which proves too little"))?;
    let starts = starts(dir.path());
    for (plan, job) in PLANS.into_iter().zip(jobs) {
        check_job(plan, job.id(), &starts, crashes).map_err(|failed| {
            format!("{plan:?}: {}; {starts:?}", failed.message().unwrap_or(""))
        })?;
    }
    let stored = count_stored_in(dir.path()).await?;
    ensure(stored == 1, format!("{stored} jobs are stored instead of only the dead one"))
}

async fn count_stored_in(dir: &Path) -> Result<u64, Failed> {
    let dq = connect(dir).await?;
    let stored = count_stored(&dq).await?;
    dq.close().await?;
    Ok(stored)
}

fn check_job(plan: Plan, job: JobId, all: &[Start], crashes: u32) -> Result<(), Failed> {
    let starts: Vec<&Start> = all.iter().filter(|start| start.job == job).collect();
    let last = starts.last().ok_or("it never ran")?;
    ensure(starts.is_sorted_by(|a, b| a.token < b.token), "tokens must grow")?;
    ensure(starts.is_sorted_by(|a, b| a.delivery < b.delivery), "deliveries must grow")?;
    ensure(starts.is_sorted_by_key(|start| start.attempt), "attempts must not shrink")?;
    // The counts of the last start if no process crashes.
    let (attempts, deliveries) = match plan {
        Plan::FailAtFirst => (2, 2),
        Plan::SnoozeAtFirst | Plan::Again => (1, 2),
        _ => (1, 1),
    };
    ensure(last.attempt == attempts, "a crash must not count an attempt")?;
    let max_deliveries = deliveries + crashes;
    ensure(last.delivery <= max_deliveries, format!("more than {max_deliveries} deliveries"))
}
