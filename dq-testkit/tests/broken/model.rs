//! The comparison detects a broken backend if an answer shows the defect.

use std::sync::Arc;

use dq_core::{Clock, HistoryLimit, HistoryLimits, MemoryBackend, OnConflict, VirtualClock};
use dq_testkit::behaviour::TrialResult;
use dq_testkit::model::{self, DueTime, Ending, JobChoice, JobSpec, Step};

use super::backends::BROKEN_BACKENDS;
use super::subject::{AddDefect, Opened, process};

fn new(key: Option<u8>, due: DueTime) -> JobSpec {
    let on_conflict = OnConflict::Replace;
    JobSpec { queue: 0, key, on_conflict, detach: false, remember: 0, due }
}

/// Leases last 21 ms.
fn claim(limit: usize) -> Step {
    Step::Claim { wants: vec![(0, 3), (1, 3)], limit, lease: 20 }
}

const NOW: DueTime = DueTime::After(0);

/// A replaced job, a retry, an expired lease, a cancel, a dead job and a pause. Jobs and leases are
/// numbered from zero.
fn steps() -> Vec<Step> {
    vec![
        Step::Schedule(vec![new(None, NOW), new(Some(1), NOW), new(Some(1), NOW), new(None, NOW)]),
        // Only reports the next due time.
        claim(0),
        // Grants leases 0 and 1.
        claim(2),
        Step::Settle(vec![(0, Ending::Retry(NOW)), (1, Ending::Skip)]),
        // Grants leases 2 and 3, which expire.
        claim(2),
        Step::Wait(30),
        // Grants lease 4, the only one held.
        claim(1),
        Step::Renew(vec![0], 20),
        Step::Settle(vec![(3, Ending::Dead(true)), (4, Ending::Dead(true)), (0, Ending::Done)]),
        // Schedules and cancels job 4, the fifth one.
        Step::Schedule(vec![new(None, DueTime::After(7))]),
        Step::Cancel(vec![JobChoice::Number(4)]),
        Step::Replay(0, None, NOW),
        Step::Pause(0, true),
        claim(3),
        Step::Pause(0, false),
        claim(3),
        Step::Wait(50),
        claim(6),
    ]
}

/// A remembered job, one with a second step, and one that takes its key.
fn steps_of_long_jobs() -> Vec<Step> {
    vec![
        Step::Schedule(vec![JobSpec { remember: 40, ..new(None, NOW) }, new(Some(2), NOW)]),
        claim(1),
        Step::Settle(vec![(0, Ending::Done)]),
        // Job 0's id is pinned, and then is not.
        Step::Repeat(0, None),
        Step::Wait(40),
        Step::Repeat(0, None),
        // Lease 1 belongs to job 1.
        claim(1),
        Step::Settle(vec![(1, Ending::Again(NOW, 3))]),
        Step::Repeat(1, None),
        // Leases 2 and 3 belong to the two jobs.
        claim(2),
        Step::Schedule(vec![JobSpec { detach: true, ..new(Some(2), NOW) }]),
        Step::Cancel(vec![JobChoice::Key(0, 2)]),
        Step::Settle(vec![(2, Ending::Retry(NOW)), (3, Ending::Retry(NOW))]),
        claim(1),
        Step::Schedule(vec![new(None, DueTime::At(400)), new(None, DueTime::After(60_000))]),
    ]
}

/// Tests both sequences, with and without a history.
async fn compare(add_defect: AddDefect) -> TrialResult {
    for limit in [HistoryLimit::default(), HistoryLimit::OFF] {
        for steps in [steps(), steps_of_long_jobs()] {
            compare_steps(add_defect, limit, &steps).await?;
        }
    }
    Ok(())
}

async fn compare_steps(add_defect: AddDefect, limit: HistoryLimit, steps: &[Step]) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let shared_clock: Arc<dyn Clock> = clock.clone();
    let memory = || {
        let history = HistoryLimits::all(limit);
        Arc::new(MemoryBackend::with_history(shared_clock.clone(), history))
    };
    let opened = Opened { process: process(memory()), clock: clock.clone(), opened_before: 0 };
    model::check(memory(), add_defect(opened), clock, steps).await
}

#[tokio::test]
async fn equal_backends_give_equal_answers() {
    assert_eq!(compare(|opened| opened.process).await, Ok(()));
}

#[tokio::test]
async fn broken_backends_give_other_answers() {
    let mut undetected = Vec::new();
    for broken in BROKEN_BACKENDS {
        if compare(broken.add_defect).await.is_ok() {
            undetected.push(broken.name);
        }
    }
    // Their answers to these steps are right: races, crashes and lost hints need a second caller,
    // and the other defects need other calls.
    let undetectable = [
        "loses jobs in a crash",
        "leases one job twice in a race",
        "accepts stale tokens",
        "purges queues with the same prefix",
        "loses every hint",
        "reports running jobs as moved",
        "keeps announcements too long",
        "ignores withdrawals of announcements",
        "reports an unfinished purge as complete",
    ];
    assert_eq!(undetected, undetectable);
}
