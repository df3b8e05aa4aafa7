//! `Runner::run_due` runs the due jobs in turn, then returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dq_core::{DurationExt, ErrorKind, Outcome, VirtualClock};

use crate::runner::faulty::{Faults, FaultyStore};
use crate::runner::fixture::{Fixture, TestHandler};

#[tokio::test]
async fn each_due_job_runs_once_even_if_all_runs_together_take_longer_than_a_lease() {
    let fixture = Fixture::new().await;
    for payload in ["a", "b", "c"] {
        fixture.schedule(payload).await;
    }
    let runs = Arc::new(AtomicU32::new(0));
    let (clock, count): (Arc<VirtualClock>, _) = (fixture.clock.clone(), Arc::clone(&runs));
    let handle = TestHandler::new(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        // The lease of 30 s expires if all jobs are claimed before the first one runs.
        clock.advance(20.seconds());
        async { Ok(Outcome::Done) }
    });
    let runner = fixture.dq.runner().without_linked_handlers().handler(handle).build().unwrap();
    assert_eq!(runner.run_due().await.unwrap().jobs, 3);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(fixture.stats().await.totals.unwrap().done, 3);
}

#[tokio::test]
async fn a_job_whose_lease_has_ended_when_the_claim_is_answered_does_not_run() {
    let [clock, server_clock] = [(); 2].map(|()| Arc::new(VirtualClock::default()));
    // A lease lasts 30 s.
    let faults = Faults { claim_jumps: 1.minutes(), ..Faults::default() };
    let store = FaultyStore::with_own_clock(&clock, &server_clock, faults);
    let fixture = Fixture::with_backend(store, clock).await;
    fixture.schedule("x").await;
    let runner = fixture.dq.runner().without_linked_handlers().handler(TestHandler::done());
    let runner = runner.build().unwrap();
    let error = runner.run_due().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(fixture.stats().await.ready, 1, "it is handed back");
    assert_eq!(runner.run_due().await.unwrap().jobs, 1);
}
