//! The trace checker accepts correct backends, and reports the defects that clients can observe.

use std::sync::Arc;

use dq_core::{Clock, MemoryBackend, VirtualClock};
use dq_testkit::faults::Recorder;
use dq_testkit::trace::Violation;

use super::backends::{BROKEN_BACKENDS, BrokenBackend};
use super::subject::{AddDefect, Opened, process};
use super::workload;
use crate::common::failing::FailingStore;

const SEEDS: std::ops::Range<u64> = 0..6;

const DEFECT_SEEDS: std::ops::Range<u64> = 0..500;

async fn violations(add_defect: AddDefect, seed: u64) -> Vec<Violation> {
    let clock = Arc::new(VirtualClock::default());
    let shared_clock: Arc<dyn Clock> = clock.clone();
    let process = process(Arc::new(MemoryBackend::new(shared_clock.clone())));
    let backend = add_defect(Opened { process, clock: clock.clone(), opened_before: 0 });
    let recorder = Recorder::over(backend, shared_clock);
    workload::run(recorder.clone(), clock, seed).await;
    recorder.check_trace().await.expect("the memory store answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correct_backend_has_no_violations() {
    for seed in SEEDS {
        let violations = violations(|opened| opened.process, seed).await;
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_are_no_violations() {
    for seed in SEEDS {
        let clock = Arc::new(VirtualClock::default());
        let shared_clock: Arc<dyn Clock> = clock.clone();
        let store = FailingStore::over(Arc::new(MemoryBackend::new(shared_clock.clone())));
        let recorder = Recorder::over(store.clone(), shared_clock);
        let work = tokio::spawn(workload::run(recorder.clone(), clock, seed));
        while !work.is_finished() {
            store.fail(|_method| true);
            tokio::task::yield_now().await;
            store.recover();
            tokio::task::yield_now().await;
        }
        store.recover();
        work.await.expect("no client panics");
        let violations = recorder.check_trace().await.expect("the outage has ended");
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

// On one thread, a seed always gives the same trace.
#[tokio::test]
async fn defects_that_clients_can_observe_are_violations() {
    let mut undetected = Vec::new();
    for BrokenBackend { name, add_defect, violates, .. } in BROKEN_BACKENDS {
        let Some(promise) = violates else { continue };
        let mut found = false;
        for seed in DEFECT_SEEDS {
            let violations = violations(*add_defect, seed).await;
            found = violations.iter().any(|violation| violation.promise == *promise);
            if found {
                break;
            }
        }
        if !found {
            undetected.push(format!("a backend that {name} does not violate {promise:?}"));
        }
    }
    assert!(undetected.is_empty(), "{}", undetected.join("\n"));
}
