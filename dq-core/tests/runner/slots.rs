//! How much runs at once, and that nothing waits that need not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dq_core::{DurationExt, Outcome};
use tokio::sync::Semaphore;

use crate::rig::{Handle, Rig, Said};

/// A handler that holds until the gate lets it go, and the most that ever ran at once.
fn gated(most: Arc<AtomicUsize>, gate: Arc<Semaphore>) -> Handle {
    let running = Arc::new(AtomicUsize::new(0));
    Handle::new(move |_, _| {
        let (most, gate, running) = (most.clone(), gate.clone(), running.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await?.forget();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        }
    })
}

async fn most_at_once(of_queue: usize, total: usize) -> usize {
    let mut rig = Rig::new().await;
    for _ in 0..50 {
        rig.schedule("x").await;
    }
    let (most, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let handle = gated(most.clone(), gate.clone());
    rig.start(|runner| {
        let handle = handle.with(|settings| settings.concurrency = Some(of_queue));
        runner.concurrency(total).handler(handle)
    });
    for done in 0..50 {
        while gate.available_permits() == 0 && most.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let stats = rig.stats().await;
        assert!(stats.running as usize <= of_queue.min(total) + 1, "no hoarding: {stats:?}");
        gate.add_permits(1);
        rig.until_settled().await;
        let _ = done;
    }
    rig.stop().await;
    assert_eq!(rig.stats().await.totals.unwrap().done, 50);
    most.load(Ordering::SeqCst)
}

#[tokio::test]
async fn concurrency_of_the_queue_is_kept_and_used() {
    assert_eq!(most_at_once(4, 100).await, 4);
}

#[tokio::test]
async fn the_total_is_kept_and_used() {
    assert_eq!(most_at_once(100, 3).await, 3);
}

#[tokio::test]
async fn twenty_thousand_due_at_once_drain() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(crate::rig::QUEUE).unwrap();
    let jobs = (0..20_000).map(|_| queue.schedule(r#""x""#, "application/json").after(5.seconds()));
    assert_eq!(rig.dq.schedule_many(jobs).await.unwrap().len(), 20_000);
    rig.start(|runner| runner.handler(Handle::done()));
    rig.clock.advance(5.seconds());
    for _ in 0..20_000 {
        rig.until_settled().await;
    }
    rig.stop().await;
    assert_eq!(rig.stats().await.totals.unwrap().done, 20_000);
}

// On two threads, of which one begins what the other brought.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_jobs_are_claimed_all_places_at_a_time() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(crate::rig::QUEUE).unwrap();
    let jobs = (0..1_600).map(|_| queue.schedule(r#""x""#, "application/json"));
    assert_eq!(rig.dq.schedule_many(jobs).await.unwrap().len(), 1_600);
    let handle = Handle::done().with(|settings| settings.concurrency = Some(16));
    rig.start(|runner| runner.handler(handle));
    let (mut claims, mut settled) = (0, 0);
    while settled < 1_600 {
        match rig.next().await {
            Said::Claimed(_) => claims += 1,
            Said::Settled(_) => settled += 1,
            _ => {}
        }
    }
    rig.stop().await;
    // A hundred, unless the machine held a thread up now and then.
    assert!(claims <= 133, "{claims} claims");
}

#[tokio::test]
async fn an_earlier_job_wakes_the_sleeper_without_the_sweep() {
    let mut rig = Rig::new().await;
    rig.start(|runner| runner.sweep(60.seconds()).handler(Handle::done()));
    let queue = rig.dq.queue(crate::rig::QUEUE).unwrap();
    let far = queue.schedule(r#""far""#, "application/json").after(30.seconds()).await.unwrap();
    assert!(queue.schedule(r#""near""#, "application/json").await.unwrap().is_stored());
    assert_eq!(rig.next().await, Said::Claimed(1), "a hint, as no clock was turned");
    rig.until_settled().await;
    // A job that is moved to now is another hint.
    assert!(matches!(
        queue.reschedule(&far, std::time::Duration::ZERO).await.unwrap(),
        dq_core::Rescheduled::Moved(_)
    ));
    rig.until_settled().await;
    rig.stop().await;
}

#[tokio::test]
async fn a_paused_queue_waits_and_resume_wakes_it() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(crate::rig::QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    rig.schedule("x").await;
    rig.start(|runner| runner.sweep(60.seconds()).handler(Handle::done()));
    assert_eq!(rig.stats().await.ready, 1);
    assert!(queue.resume().await.unwrap());
    rig.until_settled().await;
    rig.stop().await;
}

#[tokio::test]
async fn two_runners_share_a_store_and_each_job_runs_once() {
    let mut rig = Rig::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = |runs: &Arc<AtomicUsize>| {
        let runs = Arc::clone(runs);
        Handle::new(move |_, _| {
            runs.fetch_add(1, Ordering::SeqCst);
            async { Ok(Outcome::Done) }
        })
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let second = rig.dq.runner().without_linked_handlers().handler(count(&runs)).build().unwrap();
    let second = tokio::spawn(second.run_until(async {
        let _ = stopped.await;
    }));
    rig.start(|runner| runner.handler(count(&runs)));
    for _ in 0..500 {
        rig.schedule("x").await;
    }
    while rig.stats().await.totals.unwrap().done < 500 {
        tokio::task::yield_now().await;
    }
    stop.send(()).unwrap();
    second.await.unwrap().unwrap();
    rig.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 500);
}
