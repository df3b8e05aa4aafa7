//! Concurrency limits, wake-ups and claim batches.
//!
//! Wake-up tests use a sweep interval of 60 s and a still clock. After the first, empty claim, only
//! a hint can cause another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{DurationExt, Event, Outcome, Rescheduled};
use tokio::sync::Semaphore;

use crate::runner::fixture::{Fixture, Observed, Runs, TestHandler, finished};

struct Gate {
    runs: Arc<Runs>,
    permits: Arc<Semaphore>,
}

impl Gate {
    fn new(permits: usize) -> Self {
        Self { runs: Arc::default(), permits: Arc::new(Semaphore::new(permits)) }
    }

    fn handler(&self) -> TestHandler {
        let (runs, permits) = (self.runs.clone(), self.permits.clone());
        TestHandler::new(move |_, _| {
            let (running, permits) = (runs.count(), permits.clone());
            async move {
                permits.acquire().await?.forget();
                drop(running);
                Ok(Outcome::Done)
            }
        })
    }
}

#[tokio::test]
async fn the_concurrency_of_a_queue_and_in_total_is_respected_and_used() {
    for (queue_limit, total) in [(4, 100), (100, 3)] {
        let limit = queue_limit.min(total);
        let mut fixture = Fixture::new().await;
        for _ in 0..50 {
            fixture.schedule("x").await;
        }
        let gate = Gate::new(0);
        let handler = gate.handler().with(QueueSettings::new().concurrency(queue_limit));
        fixture.start(|runner| runner.concurrency(total).handler(handler));
        while gate.runs.highest() == 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..50 {
            let running = fixture.stats().await.running as usize;
            assert!(running <= limit, "{running} jobs are claimed, more than can run");
            fixture.clock.advance(10.millis());
            gate.permits.add_permits(1);
            fixture.wait_settled().await;
        }
        fixture.stop().await;
        assert_eq!((fixture.done().await, gate.runs.highest()), (50, limit));
    }
}

// Two threads, so that one can start jobs while the other claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_jobs_are_claimed_in_full_batches() {
    let mut fixture = Fixture::new().await;
    let queue = fixture.queue();
    let jobs = (0..1_600).map(|_| queue.schedule(r#""x""#, "application/json"));
    assert_eq!(fixture.dq.schedule_many(jobs).await.unwrap().len(), 1_600);
    fixture.run(TestHandler::done().with(QueueSettings::new().concurrency(16)));
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

#[tokio::test]
async fn jobs_claimed_ahead_are_given_back_if_the_slot_stays_busy_or_the_runner_stops() {
    for stops in [false, true] {
        let mut fixture = Fixture::new().await;
        for _ in 0..4 {
            fixture.schedule("x").await;
        }
        // The first job is short, so the other three are claimed at once: one runs until the gate
        // opens, and two wait for the slot.
        let gate = Gate::new(1);
        fixture.run(gate.handler().one_at_once());
        fixture.wait_settled().await;
        while fixture.stats().await.running < 3 {
            tokio::task::yield_now().await;
        }

        if stops {
            fixture.request_stop();
        } else {
            fixture.clock.advance(10.millis());
        }
        for _ in 0..2 {
            fixture.wait_settled().await;
        }
        let stats = fixture.stats().await;
        assert_eq!((stats.running, stats.ready), (1, 2), "another process can claim them");
        gate.permits.add_permits(3);
        if stops {
            fixture.join().await.unwrap();
            assert_eq!(fixture.done().await, 2);
        } else {
            while fixture.done().await < 4 {
                tokio::task::yield_now().await;
            }
            fixture.stop().await;
        }
        let is_again =
            |observed: &Observed| matches!(observed, Observed::Started { deliveries: 2.., .. });
        assert!(!fixture.observed().iter().any(is_again), "a job given back was not delivered");
    }
}

#[tokio::test]
async fn a_job_that_becomes_due_wakes_the_claim_loop() {
    let mut fixture = Fixture::new().await;
    fixture.start(|runner| runner.sweep(60.seconds()).handler(TestHandler::done()));
    fixture.wait_claimed().await;
    let queue = fixture.queue();
    let far = queue.schedule(r#""far""#, "application/json").after(30.seconds()).await.unwrap();
    fixture.schedule("near").await;
    assert_eq!(fixture.next().await, Observed::Claimed(1));
    fixture.wait_settled().await;

    let moved = queue.reschedule(&far, Duration::ZERO).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)));
    fixture.wait_settled().await;

    assert!(queue.pause().await.unwrap());
    fixture.schedule("paused").await;
    assert_eq!(fixture.stats().await.ready, 1);
    assert!(queue.resume().await.unwrap());
    fixture.wait_settled().await;
    fixture.stop().await;
}

#[tokio::test]
async fn each_claimed_job_frees_its_slot_even_if_it_is_aborted() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("done").await;
    fixture.schedule("aborted").await;
    let busy = Arc::new(AtomicUsize::new(0));
    let count = busy.clone();
    let observer = move |event: &Event<'_>| match event {
        Event::Claimed { jobs, .. } => drop(count.fetch_add(*jobs, Ordering::SeqCst)),
        Event::SlotTaken => drop(count.fetch_add(1, Ordering::SeqCst)),
        Event::SlotFreed => drop(count.fetch_sub(1, Ordering::SeqCst)),
        _ => {}
    };
    let handler = TestHandler::new(|job, payload| async move {
        job.sleep(if payload == "done" { 5.seconds() } else { 1.hours() }).await;
        Ok(Outcome::Done)
    });
    fixture.start(|runner| runner.grace(Duration::ZERO).observer(observer).handler(handler));
    fixture.wait_for(&Observed::Claimed(2)).await;
    assert_eq!(busy.load(Ordering::SeqCst), 2);
    fixture.advance_until(100.millis(), &finished("Done")).await;
    fixture.stop().await;
    assert_eq!(busy.load(Ordering::SeqCst), 0);
}
