//! `Runner::run_due`: runs the due jobs one after the other, then returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dq_core::{DurationExt, Outcome, VirtualClock};

use crate::fixture::{Fixture, TestHandler};

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
        // A lease lasts 30 s: it would expire if all jobs were claimed before the first one runs.
        clock.advance(20.seconds());
        async { Ok(Outcome::Done) }
    });
    let runner = fixture.dq.runner().without_linked_handlers().handler(handle).build().unwrap();
    assert_eq!(runner.run_due().await.unwrap().jobs, 3);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(fixture.stats().await.totals.unwrap().done, 3);
}
