//! SQLite and the memory backend give the same answers to the same calls.

use std::sync::Arc;

use dq::backend::backend_from_url;
use dq::config::Environment;
use dq::{Clock, Entropy, HistoryLimit, HistoryLimits, VirtualClock};
use dq_testkit::behaviour::TrialResult;
use dq_testkit::fixture::memory;
use dq_testkit::model::{self, Step};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

proptest! {
    #![proptest_config(Config { cases: 96, failure_persistence: None, ..Config::default() })]

    #[test]
    fn sqlite_answers_like_memory(steps in model::steps(60)) {
        compare(&steps).map_err(|difference| TestCaseError::fail(difference.to_string()))?;
    }
}

fn compare(steps: &[Step]) -> TrialResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let clock = Arc::new(VirtualClock::default());
        let shared_clock: Arc<dyn Clock> = clock.clone();
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Relaxed durability is faster; the test compares answers only.
        let file = directory.path().join("jobs.db");
        let url = format!("sqlite://{}?durability=relaxed", file.display());
        let history = HistoryLimits::all(HistoryLimit::default());
        let entropy = Arc::new(Entropy::seeded(1));
        let environment = Environment::new(shared_clock.clone(), entropy).history(history);
        let sqlite = backend_from_url(&url)?.connect(&environment).await?;
        let memory = Arc::new(memory(shared_clock));
        model::check(memory, sqlite, clock, steps).await
    })
}
