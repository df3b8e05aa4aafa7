//! Shutdown: grace period, release of unfinished jobs, errors.

use std::sync::Arc;

use dq_core::{DurationExt, HandlerResult, Outcome, Settled};
use tokio::sync::Notify;

use crate::runner::fixture::{BlockingHandler, FIRST, Fixture, Observed, Runs, TestHandler};
use crate::runner::log_lines::log_lines;

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
    fixture.wait_for(&FIRST).await;
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
    fixture.start(|runner| runner.grace(3.seconds()).handler(TestHandler::hangs()));
    fixture.wait_for(&FIRST).await;
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

async fn blocking_past_grace() -> (Fixture, std::sync::mpsc::Sender<HandlerResult>) {
    let runs = Arc::new(Runs::default());
    let (handler, results) = BlockingHandler::new(&runs);
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    fixture.start(|runner| runner.grace(3.seconds()).handler(handler));
    while runs.highest() == 0 {
        tokio::task::yield_now().await;
    }
    fixture.request_stop();
    fixture.wait_for(&Observed::Stopping).await;
    fixture.pass(4.seconds()).await;
    assert_eq!(fixture.stats().await.running, 1, "not released while the thread runs");
    fixture.wait_for(&Observed::GraceExceeded).await;
    (fixture, results)
}

#[tokio::test]
async fn a_blocking_handler_that_ends_soon_after_the_grace_period_is_settled_or_released() {
    for (result, done) in [(Ok(Outcome::Done), 1), (Err("interrupted".into()), 0)] {
        let (mut fixture, results) = blocking_past_grace().await;
        results.send(result).unwrap();
        fixture.join().await.unwrap();
        let stats = fixture.stats().await;
        assert_eq!((stats.totals.unwrap().done, stats.ready), (done, 1 - done));
    }
}

#[tokio::test]
async fn a_blocking_handler_that_outlives_the_runner_keeps_its_lease_and_is_settled() {
    let (mut fixture, results) = blocking_past_grace().await;
    fixture.advance_until(500.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    assert!(log_lines().contains("blocking handlers still run"), "{}", log_lines());
    for _ in 0..120 {
        fixture.pass(1.seconds()).await;
        assert_eq!(fixture.stats().await.running, 1, "two minutes, with a lease of 30 s");
    }
    results.send(Ok(Outcome::Done)).unwrap();
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    assert_eq!(fixture.stats().await.totals.unwrap().done, 1);
}

#[tokio::test]
async fn the_name_of_a_runner_is_taken_until_its_last_blocking_handler_has_ended() {
    let (mut fixture, results) = blocking_past_grace().await;
    fixture.advance_until(500.millis(), &Observed::Stopped).await;
    fixture.join().await.unwrap();
    let dq = fixture.dq.clone();
    let listed = dq.runners().await.unwrap();
    let build = || {
        let runner = dq.runner().without_linked_handlers().handler(TestHandler::done());
        runner.name(listed[0].name.clone()).build()
    };
    assert_eq!(build().unwrap_err().kind(), dq_core::ErrorKind::Duplicate);
    results.send(Ok(Outcome::Done)).unwrap();
    assert_eq!(fixture.wait_settled().await, Settled::Accepted);
    while !dq.runners().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    while let Err(error) = build() {
        assert_eq!(error.kind(), dq_core::ErrorKind::Duplicate);
        tokio::task::yield_now().await;
    }
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
