//! Shutdown: grace period, release of unfinished jobs, errors.

use std::sync::Arc;

use dq_core::{DurationExt, Outcome};
use tokio::sync::Notify;

use crate::fixture::{Fixture, Observed, TestHandler};

#[tokio::test]
async fn running_handlers_may_finish() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let finish = Arc::new(Notify::new());
    let gate = Arc::clone(&finish);
    fixture.start(|runner| {
        runner.handler(TestHandler::new(move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                Ok(Outcome::Done)
            }
        }))
    });
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.request_stop();
    fixture.wait_for(&Observed::Stopping).await;
    fixture.schedule("late").await;
    finish.notify_one();
    fixture.join().await.unwrap();
    let stats = fixture.stats().await;
    assert_eq!(stats.totals.unwrap().done, 1);
    assert_eq!((stats.ready, stats.running), (1, 0), "nothing is claimed after the stop");
}

#[tokio::test]
async fn a_job_that_does_not_finish_within_the_grace_period_is_released() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| {
        runner
            .grace(3.seconds())
            .handler(TestHandler::new(async |_, _| std::future::pending().await))
    });
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 1 }).await;
    fixture.request_stop();
    fixture.wait_for(&Observed::Stopping).await;
    fixture.advance_until(500.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    let stats = fixture.stats().await;
    assert_eq!((stats.ready, stats.running), (1, 0), "due at once elsewhere, not after the lease");
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.wait_for(&Observed::Started { attempt: 1, deliveries: 2 }).await;
    fixture.stop().await;
}

#[tokio::test]
async fn the_output_of_the_shutdown_future_is_dropped() {
    let fixture = Fixture::new().await;
    let runner = || fixture.dq.runner().without_linked_handlers().handler(TestHandler::done());
    // The type of `tokio::signal::ctrl_c()`.
    let shutdown = async || std::io::Result::Ok(());
    runner().run_until(shutdown()).await.unwrap();
    runner().build().unwrap().run_until(shutdown()).await.unwrap();
}

#[tokio::test]
async fn an_idle_runner_stops_at_once() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.stop().await;
}

#[tokio::test]
async fn a_closed_store_ends_the_runner_with_an_error() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.dq.close().await.unwrap();
    // The next claim comes after the sweep interval of 1 s, whose timer may not be set yet.
    let error = loop {
        fixture.clock.advance(1.seconds());
        tokio::task::yield_now().await;
        if fixture.has_stopped() {
            break fixture.join().await.unwrap_err();
        }
    };
    assert_eq!(error.kind(), dq_core::ErrorKind::Closed);
}
