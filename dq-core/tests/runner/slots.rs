//! Concurrency limits, wake-ups and claim batches.
//!
//! Wake-up tests use a sweep interval of 60 s and a still clock. After the first, empty claim, only
//! a hint can cause another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::{DurationExt, Event, Outcome};
use tokio::sync::Semaphore;

use crate::runner::fixture::{Fixture, Observed, TestHandler};

/// Waits for a permit from `gate`; `max_running` records the most concurrent runs.
fn gated(max_running: Arc<AtomicUsize>, gate: Arc<Semaphore>) -> TestHandler {
    let running = Arc::new(AtomicUsize::new(0));
    TestHandler::new(move |_, _| {
        let (max_running, gate, running) = (max_running.clone(), gate.clone(), running.clone());
        async move {
            max_running.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await?.forget();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        }
    })
}

async fn max_running(queue_limit: usize, total_limit: usize) -> usize {
    let mut fixture = Fixture::new().await;
    for _ in 0..50 {
        fixture.schedule("x").await;
    }
    let (max_running, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let handle = gated(max_running.clone(), gate.clone());
    fixture.start(|runner| {
        let handle = handle.with(|settings| settings.concurrency = Some(queue_limit));
        runner.concurrency(total_limit).handler(handle)
    });
    for _ in 0..50 {
        while max_running.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let stats = fixture.stats().await;
        assert!(
            stats.running as usize <= queue_limit.min(total_limit),
            "no more jobs are claimed than can run: {stats:?}"
        );
        fixture.clock.advance(10.millis());
        gate.add_permits(1);
        fixture.wait_settled().await;
    }
    fixture.stop().await;
    assert_eq!(fixture.stats().await.totals.unwrap().done, 50);
    max_running.load(Ordering::SeqCst)
}

#[tokio::test]
async fn the_concurrency_of_a_queue_and_in_total_is_respected_and_used() {
    assert_eq!(max_running(4, 100).await, 4);
    assert_eq!(max_running(100, 3).await, 3);
}

// Two threads, so that one can start jobs while the other claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_jobs_are_claimed_in_full_batches() {
    let mut fixture = Fixture::new().await;
    let queue = fixture.dq.queue(crate::runner::fixture::QUEUE).unwrap();
    let jobs = (0..1_600).map(|_| queue.schedule(r#""x""#, "application/json"));
    assert_eq!(fixture.dq.schedule_many(jobs).await.unwrap().len(), 1_600);
    let handle = TestHandler::done().with(|settings| settings.concurrency = Some(16));
    fixture.start(|runner| runner.handler(handle));
    let (mut claims, mut settled) = (0, 0);
    while settled < 1_600 {
        match fixture.next().await {
            Observed::Claimed(_) => claims += 1,
            Observed::Settled(_) => settled += 1,
            _ => {}
        }
    }
    fixture.stop().await;
    // The first claim is for the 16 slots, the others for a hundred jobs each. The margin is for
    // threads delayed by the operating system.
    assert!((17..=34).contains(&claims), "{claims} claims");
}

/// Starts a runner with one slot. The first job is short, so the other three are claimed at once:
/// one runs until the gate opens, and two wait for the slot.
async fn one_running_and_two_held() -> (Fixture, Arc<Semaphore>) {
    let mut fixture = Fixture::new().await;
    for _ in 0..4 {
        fixture.schedule("x").await;
    }
    let gate = Arc::new(Semaphore::new(1));
    let handle = gated(Arc::default(), gate.clone());
    fixture.start(|runner| runner.handler(handle.with(|settings| settings.concurrency = Some(1))));
    fixture.wait_settled().await;
    while fixture.stats().await.running < 3 {
        tokio::task::yield_now().await;
    }
    (fixture, gate)
}

#[tokio::test]
async fn jobs_claimed_ahead_are_given_back_if_the_slot_stays_busy() {
    let (mut fixture, gate) = one_running_and_two_held().await;
    fixture.clock.advance(10.millis());
    for _ in 0..2 {
        fixture.wait_settled().await;
    }
    let stats = fixture.stats().await;
    assert_eq!((stats.running, stats.ready), (1, 2), "another process can claim them");
    gate.add_permits(3);
    while fixture.stats().await.totals.unwrap().done < 4 {
        tokio::task::yield_now().await;
    }
    fixture.stop().await;
    let is_again =
        |observed: &Observed| matches!(observed, Observed::Started { deliveries: 2.., .. });
    assert!(!fixture.observed().iter().any(is_again), "a job that is given back was not delivered");
}

#[tokio::test]
async fn jobs_claimed_ahead_are_given_back_when_the_runner_stops() {
    let (mut fixture, gate) = one_running_and_two_held().await;
    fixture.request_stop();
    for _ in 0..2 {
        fixture.wait_settled().await;
    }
    let stats = fixture.stats().await;
    assert_eq!((stats.running, stats.ready), (1, 2), "the running job is not waited for");
    gate.add_permits(1);
    fixture.join().await.unwrap();
    assert_eq!(fixture.stats().await.totals.unwrap().done, 2);
}

#[tokio::test]
async fn scheduling_or_rescheduling_a_job_to_now_wakes_the_claim_loop() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.wait_claimed().await;
    let queue = fixture.dq.queue(crate::runner::fixture::QUEUE).unwrap();
    let far = queue.schedule(r#""far""#, "application/json").after(30.seconds()).await.unwrap();
    assert!(queue.schedule(r#""near""#, "application/json").await.unwrap().is_stored());
    assert_eq!(
        fixture.next().await,
        Observed::Claimed(1),
        "woken by a hint: the clock has not advanced"
    );
    fixture.wait_settled().await;
    assert!(matches!(
        queue.reschedule(&far, std::time::Duration::ZERO).await.unwrap(),
        dq_core::Rescheduled::Moved(_)
    ));
    fixture.wait_settled().await;
    fixture.stop().await;
}

#[tokio::test]
async fn resuming_a_queue_wakes_the_claim_loop() {
    let mut fixture = Fixture::new().await;
    let queue = fixture.dq.queue(crate::runner::fixture::QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    fixture.schedule("x").await;
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.wait_claimed().await;
    assert_eq!(fixture.stats().await.ready, 1);
    assert!(queue.resume().await.unwrap());
    fixture.wait_settled().await;
    fixture.stop().await;
}

#[tokio::test]
async fn each_claimed_job_frees_its_slot_and_the_run_time_is_observed() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("done").await;
    fixture.schedule("aborted").await;
    let busy = Arc::new(AtomicUsize::new(0));
    let durations = Arc::new(Mutex::new(Vec::new()));
    let calls = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let (busy, durations, calls) = (busy.clone(), durations.clone(), calls.clone());
        move |event: &Event<'_>| match event {
            Event::Starting { slots } => assert_eq!(*slots, 7),
            Event::Claimed { jobs, .. } => drop(busy.fetch_add(*jobs, Ordering::SeqCst)),
            Event::SlotTaken => drop(busy.fetch_add(1, Ordering::SeqCst)),
            Event::SlotFreed => drop(busy.fetch_sub(1, Ordering::SeqCst)),
            Event::Finished { duration, .. } => durations.lock().unwrap().push(*duration),
            Event::StoreCalled { operation, .. } => calls.lock().unwrap().push(*operation),
            _ => {}
        }
    };
    fixture.start(|runner| {
        let handle = TestHandler::new(|ctx, payload| async move {
            let time = if payload == "done" { 5.seconds() } else { 1.hours() };
            ctx.sleep(time).await;
            Ok(Outcome::Done)
        });
        runner.concurrency(7).grace(Duration::ZERO).observer(observer).handler(handle)
    });
    fixture.wait_for(&Observed::Claimed(2)).await;
    assert_eq!(busy.load(Ordering::SeqCst), 2);
    fixture.advance_until(100.millis(), &Observed::Finished("Done".to_owned())).await;
    fixture.stop().await;
    assert_eq!(busy.load(Ordering::SeqCst), 0, "the aborted run, too");
    let durations = durations.lock().unwrap().clone();
    assert_eq!(durations.len(), 1, "an aborted run has no end");
    assert!((5.seconds()..6.seconds()).contains(&durations[0]), "{durations:?}");
    let calls = calls.lock().unwrap();
    assert!(["listen", "claim", "settle"].iter().all(|call| calls.contains(call)), "{calls:?}");
}
