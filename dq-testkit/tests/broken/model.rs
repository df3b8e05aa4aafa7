//! The comparison detects a broken backend if an answer shows the defect.
//!
//! The suite has no trials for defects that these random steps find.

use std::sync::Arc;

use dq_core::{Clock, HistoryLimit, HistoryLimits, MemoryBackend, VirtualClock};
use dq_testkit::behaviour::TrialResult;
use dq_testkit::model::{self, Step};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::backends::BROKEN_BACKENDS;
use super::subject::{AddDefect, Opened, process};

/// Sequences of steps, each with and without a history.
const SEQUENCES: usize = 120;
const MAX_STEPS: usize = 60;

/// The same sequences in every run.
fn random_sequences() -> Vec<Vec<Step>> {
    let mut runner = TestRunner::deterministic();
    let steps = model::steps(MAX_STEPS);
    let mut sequence = || steps.new_tree(&mut runner).expect("random steps").current();
    (0..SEQUENCES).map(|_| sequence()).collect()
}

async fn compare(add_defect: AddDefect, sequences: &[Vec<Step>]) -> TrialResult {
    for steps in sequences {
        for limit in [HistoryLimit::default(), HistoryLimit::OFF] {
            compare_steps(add_defect, limit, steps).await?;
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
    assert_eq!(compare(|opened| opened.process, &random_sequences()).await, Ok(()));
}

/// Races, crashes and lost hints need a second caller. Pins hardly ever expire in random steps. The
/// other defects need other calls.
const UNDETECTABLE: [&str; 10] = [
    "loses jobs in a crash",
    "leases one job twice in a race",
    "settles in two steps",
    "cancels in two steps",
    "purges queues with the same prefix",
    "loses every hint",
    "pins ids too long",
    "keeps announcements too long",
    "ignores withdrawals of announcements",
    "reports an unfinished purge as complete",
];

#[tokio::test]
async fn broken_backends_give_other_answers() {
    let exists = |name: &&str| BROKEN_BACKENDS.iter().any(|broken| broken.name == *name);
    assert!(UNDETECTABLE.iter().all(exists));
    let sequences = random_sequences();
    for broken in BROKEN_BACKENDS.iter().filter(|it| !UNDETECTABLE.contains(&it.name)) {
        let compared = compare(broken.add_defect, &sequences).await;
        assert!(compared.is_err(), "a backend that {} is not detected", broken.name);
    }
}
