//! A runner that is killed at the n-th thing it does, with n growing from kill to kill, over a
//! store with jobs of every kind: for the points between points.

use std::path::Path;

use dq::JobId;
use libtest_mimic::{Failed, Trial};

use crate::points::ensure;
use crate::process::{Plan, Point, Run, aborted, connect, faulty, runs, spawn};

const PLANS: [Plan; 6] = [
    Plan::Succeed,
    Plan::FailAtFirst,
    Plan::SnoozeAtFirst,
    Plan::SkipIt,
    Plan::Die,
    Plan::AbortAtFirst,
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |first| {
        Trial::test(format!("killed_at/every_other_event_from_{first}"), move || sweep(first))
    };
    vec![trial(1), trial(2)]
}

#[tokio::main(flavor = "current_thread")]
async fn sweep(first: u64) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dq = connect(dir.path()).await?;
    let jobs = dq.schedule_many(PLANS.map(|plan| dq.schedule::<faulty>(plan))).await?;
    dq.close().await?;

    let mut crashes = 0;
    for n in (first..).step_by(2) {
        let ended = spawn(dir.path(), Some(Point::Event(n)));
        if ended.success() {
            break;
        }
        ensure(aborted(ended), format!("the runner failed by itself: {ended}"))?;
        crashes += 1;
        check_counts(dir.path()).await?;
    }
    ensure(crashes >= 5, format!("only {crashes} crashes: this proves little"))?;
    let runs = runs(dir.path());
    for (plan, job) in PLANS.into_iter().zip(jobs) {
        check_job(plan, job.id(), &runs, crashes)
            .map_err(|failed| format!("{plan:?}: {}; {runs:?}", failed.message().unwrap_or("")))?;
    }
    let left = check_counts(dir.path()).await?;
    ensure(left == 1, format!("{left} jobs are left; only the dead one should be"))
}

/// How many jobs are stored, of a store whose counts add up.
async fn check_counts(dir: &Path) -> Result<u64, Failed> {
    let dq = connect(dir).await?;
    let mut stored = 0;
    for stats in dq.stats().await? {
        ensure(stats.adds_up() == Some(true), format!("the counts do not add up: {stats:?}"))?;
        stored += stats.stored();
    }
    dq.close().await?;
    Ok(stored)
}

fn check_job(plan: Plan, job: JobId, runs: &[Run], crashes: u32) -> Result<(), Failed> {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.job == job).collect();
    let last = runs.last().ok_or("it never ran")?;
    ensure(runs.is_sorted_by(|a, b| a.token < b.token), "tokens must grow".to_owned())?;
    ensure(runs.is_sorted_by(|a, b| a.delivery < b.delivery), "deliveries must grow".to_owned())?;
    ensure(runs.is_sorted_by_key(|run| run.attempt), "attempts must not shrink".to_owned())?;
    let (attempts, deliveries) = match plan {
        Plan::FailAtFirst => (2, 2),
        Plan::SnoozeAtFirst => (1, 2),
        _ => (1, 1),
    };
    ensure(last.attempt == attempts, "a crash must cost no attempt".to_owned())?;
    let bound = deliveries + crashes;
    ensure(last.delivery <= bound, format!("more than {bound} deliveries"))
}
