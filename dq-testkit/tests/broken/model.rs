//! The comparison of two backends detects a broken one if one of its answers shows the defect.

use std::sync::Arc;

use dq_core::{Backend, Clock, MemoryBackend, OnConflict, VirtualClock};
use dq_testkit::behaviour::TrialResult;
use dq_testkit::model::{self, DueTime, Ending, JobChoice, JobSpec, Step};

use super::backends::BROKEN_BACKENDS;
use super::subject::{AddDefect, Opened, process};

/// A sequence with a replaced job, a retry, a lapsed lease, a cancel, a dead job and a pause.
/// Leases last 21 ms; jobs and leases are numbered from zero.
fn steps() -> Vec<Step> {
    let new = |key, due| JobSpec { queue: 0, key, on_conflict: OnConflict::Replace, due };
    let now = DueTime::After(0);
    let claim = |limit| Step::Claim { wants: vec![(0, 3), (1, 3)], limit, lease: 20 };
    vec![
        Step::Schedule(vec![new(None, now), new(Some(1), now), new(Some(1), now), new(None, now)]),
        // Only reports the next due time.
        claim(0),
        // Grants the leases 0 and 1.
        claim(2),
        Step::Settle(vec![(0, Ending::Retry(now)), (1, Ending::Skip)]),
        // Grants the leases 2 and 3, which lapse.
        claim(2),
        Step::Wait(30),
        // Grants lease 4, the only live one.
        claim(1),
        Step::Renew(vec![0], 20),
        Step::Settle(vec![(3, Ending::Dead(true)), (4, Ending::Dead(true)), (0, Ending::Done)]),
        // Schedules and cancels job 4, the fifth one.
        Step::Schedule(vec![new(None, DueTime::After(7))]),
        Step::Cancel(vec![JobChoice::Number(4)]),
        Step::Replay(0, None, now),
        Step::Pause(0, true),
        claim(3),
        Step::Pause(0, false),
        claim(3),
        Step::Wait(50),
        claim(6),
    ]
}

async fn compare(add_defect: AddDefect) -> TrialResult {
    let clock = Arc::new(VirtualClock::default());
    let shared_clock: Arc<dyn Clock> = clock.clone();
    let memory = || Arc::new(MemoryBackend::new(shared_clock.clone()));
    let opened = Opened { process: process(memory()), clock: clock.clone(), opened_before: 0 };
    let reference: Arc<dyn Backend> = memory();
    model::check(reference, add_defect(opened), clock, &steps()).await
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
    // and the other defects need calls that the steps do not make.
    let undetectable = [
        "loses jobs in a crash",
        "leases one job twice in a race",
        "accepts stale tokens",
        "purges queues with the same prefix",
        "loses every hint",
        "reports running jobs as moved",
    ];
    assert_eq!(undetected, undetectable);
}
