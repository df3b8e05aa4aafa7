//! `Runner::run_due` runs the due jobs in turn, then returns.

use std::sync::{Arc, Mutex};

use dq_core::config::QueueSettings;
use dq_core::{DurationExt, ErrorKind, Outcome, Priority};

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
async fn jobs_run_by_priority_and_then_in_due_order() {
    let fixture = Fixture::new().await;
    let ran = Arc::new(Mutex::new(Vec::new()));
    let mut runner = fixture.dq.runner().without_linked_handlers();
    for (queue, priority) in [
        ("LOW", Priority::Low),
        ("A", Priority::Normal),
        ("B", Priority::Normal),
        ("HIGH", Priority::High),
    ] {
        let ran = Arc::clone(&ran);
        let handler = TestHandler::new(move |_, payload| {
            ran.lock().unwrap().push(payload);
            async { Ok(Outcome::Done) }
        });
        let settings = QueueSettings::new().priority(priority);
        runner = runner.handler(handler.of_queue(queue).with(settings));
    }
    for (queue, payload) in [("LOW", "l1"), ("A", "a1"), ("B", "b1"), ("A", "a2")] {
        let job =
            fixture.dq.queue(queue).unwrap().schedule(format!("{payload:?}"), "application/json");
        assert!(job.await.unwrap().is_stored());
        fixture.clock.advance(1.millis());
    }
    let later = fixture.dq.queue("HIGH").unwrap().schedule(r#""h1""#, "application/json");
    assert!(later.after(1.hours()).await.unwrap().is_stored());
    let runner = runner.build().unwrap();
    assert_eq!(runner.run_due().await.unwrap().jobs, 4);
    assert_eq!(ran.lock().unwrap().join(" "), "a1 b1 a2 l1");
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
