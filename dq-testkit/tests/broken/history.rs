//! Histories of many clients at once: the judge acquits the unbroken backend and convicts the
//! broken ones.

use std::sync::Arc;

use dq_core::{Clock, MemoryBackend, VirtualClock};
use dq_testkit::faults::{Recorder, Sleepy};
use dq_testkit::history::Breach;

use super::breaks::{BREAKS, Break};
use super::subject::{Make, Opened, process};
use super::workload;

const SEEDS: std::ops::Range<u64> = 0..6;

/// The same for the guilty, until one is convicted: on a busy machine, a race may not come about for a while.
const CHANCES: std::ops::Range<u64> = 0..60;

/// What is proven against a backend on one seed.
async fn judge(make: Make, seed: u64) -> Vec<Breach> {
    let clock = Arc::new(VirtualClock::default());
    let shared_clock: Arc<dyn Clock> = clock.clone();
    let process = process(Arc::new(MemoryBackend::new(shared_clock.clone())));
    let backend = make(Opened { process, clock: clock.clone(), before: 0 });
    let recorder = Recorder::over(backend, shared_clock);
    workload::run(recorder.clone(), clock, seed).await;
    recorder.judge().await.expect("memory can be listed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unbroken_backend_is_acquitted() {
    for seed in SEEDS {
        let breaches = judge(|opened| opened.process, seed).await;
        assert!(breaches.is_empty(), "seed {seed}: {breaches:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_are_no_breach() {
    for seed in SEEDS {
        let clock = Arc::new(VirtualClock::default());
        let shared_clock: Arc<dyn Clock> = clock.clone();
        let sleepy = Sleepy::over(Arc::new(MemoryBackend::new(shared_clock.clone())));
        let recorder = Recorder::over(sleepy.clone(), shared_clock);
        let work = tokio::spawn(workload::run(recorder.clone(), clock, seed));
        while !work.is_finished() {
            sleepy.sleep();
            tokio::task::yield_now().await;
            sleepy.wake();
            tokio::task::yield_now().await;
        }
        sleepy.wake();
        work.await.expect("no client panics");
        let breaches = recorder.judge().await.expect("it is awake");
        assert!(breaches.is_empty(), "seed {seed}: {breaches:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_can_see_is_proven() {
    let mut escaped = Vec::new();
    for Break { name, make, proven, .. } in BREAKS {
        let Some(clause) = proven else { continue };
        let mut found = false;
        for seed in CHANCES {
            found = judge(*make, seed).await.iter().any(|breach| breach.clause == *clause);
            if found {
                break;
            }
        }
        if !found {
            escaped.push(format!("{name} is not convicted of {clause:?}"));
        }
    }
    assert!(escaped.is_empty(), "{}", escaped.join("\n"));
}
