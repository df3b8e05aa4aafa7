//! `Runner::run_due` runs the due jobs in turn, then returns.

use std::sync::Arc;

use dq_core::{DurationExt, ErrorKind, Outcome};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{Fixture, TestHandler};

#[tokio::test]
async fn each_due_job_runs_once_even_if_all_runs_together_take_longer_than_a_lease() {
    let fixture = Fixture::new().await;
    for payload in ["a", "b", "c"] {
        fixture.schedule(payload).await;
    }
    let clock = Arc::clone(&fixture.clock);
    let handler = TestHandler::new(move |job, _| {
        assert_eq!(job.deliveries(), 1);
        // The lease of 30 s expires if all jobs are claimed before the first one runs.
        clock.advance(20.seconds());
        async { Ok(Outcome::Done) }
    });
    let runner = fixture.dq.runner().without_linked_handlers().handler(handler).build().unwrap();
    assert_eq!(runner.run_due().await.unwrap().jobs, 3);
    assert_eq!(fixture.done().await, 3);
}

#[tokio::test]
async fn a_job_whose_lease_has_ended_when_the_claim_is_answered_does_not_run() {
    // A lease lasts 30 s.
    let faults = Faults { claim_jumps: 1.minutes(), ..Faults::default() };
    let (fixture, _) = Fixture::with_store_clock(faults).await;
    fixture.schedule("x").await;
    let runner = fixture.dq.runner().without_linked_handlers().handler(TestHandler::done());
    let runner = runner.build().unwrap();
    let error = runner.run_due().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(fixture.stats().await.ready, 1, "it is handed back");
    assert_eq!(runner.run_due().await.unwrap().jobs, 1);
}
