//! Stores that fail, hang or dawdle, clocks that are set, and observers that panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dq_core::{Clock, DurationExt, ErrorKind, Event, JobState, Outcome, Settled, VirtualClock};

use crate::odd::{Odd, Oddities, set_back};
use crate::rig::{Handle, QUEUE, Rig, Said};

const LEASE: Duration = Duration::from_secs(6);

async fn odd(oddities: Oddities) -> Rig {
    let clock = Arc::new(VirtualClock::default());
    Rig::on(Odd::new(&clock, oddities), clock).await
}

fn failing(times: u32, kind: ErrorKind) -> Oddities {
    Oddities { settlements_fail: Some((times, kind)), ..Oddities::default() }
}

fn hangs() -> Handle {
    Handle::new(async |_, _| std::future::pending().await)
}

#[tokio::test]
async fn a_verdict_waits_for_the_store() {
    let mut rig = odd(failing(3, ErrorKind::Unavailable)).await;
    rig.schedule("x").await;
    rig.start(|runner| runner.handler(Handle::done()));
    rig.until(&Said::StoreFailed).await;
    rig.advance_until(100.millis(), &Said::Settled(Settled::Accepted)).await;
    rig.stop().await;
    assert_eq!(rig.stats().await.totals.unwrap().done, 1);
}

#[tokio::test]
async fn a_timeout_counts_though_the_store_was_away() {
    let mut rig = odd(failing(1, ErrorKind::Unavailable)).await;
    rig.schedule("x").await;
    rig.start(|runner| {
        runner.handler(hangs().with(|settings| {
            settings.timeout = Some(5.seconds());
            settings.max_attempts = Some(1);
        }))
    });
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    rig.advance_until(500.millis(), &Said::StoreFailed).await;
    rig.advance_until(100.millis(), &Said::Settled(Settled::Accepted)).await;
    rig.stop().await;
    assert_eq!(rig.stats().await.dead, 1);
}

#[tokio::test]
async fn a_job_is_handed_back_though_the_store_was_away() {
    let mut rig = odd(failing(1, ErrorKind::Unavailable)).await;
    rig.schedule("x").await;
    rig.start(|runner| runner.grace(1.seconds()).handler(hangs()));
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    rig.tell_to_stop();
    rig.advance_until(100.millis(), &Said::Stopped).await;
    rig.stopped().await.unwrap();
    assert_eq!(rig.stats().await.ready, 1);
}

#[tokio::test]
async fn settlements_that_are_refused_for_good_do_not_stop_the_others() {
    let mut rig = odd(failing(1, ErrorKind::Internal)).await;
    rig.schedule("x").await;
    rig.start(|runner| runner.handler(Handle::done()));
    rig.until(&Said::StoreFailed).await;
    rig.schedule("y").await;
    assert_eq!(rig.until_settled().await, Settled::Accepted);
    rig.stop().await;
    let stats = rig.stats().await;
    assert_eq!((stats.totals.unwrap().done, stats.running), (1, 1), "it runs again by its lease");
}

#[tokio::test]
async fn schedule_is_repeated_when_its_answer_was_lost() {
    let rig = odd(Oddities { schedule_answers_lost: 2, ..Oddities::default() }).await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let id = rig.dq.new_id();
    let answer = queue.schedule("x", "text/plain").after(1.hours()).id(id).await.unwrap();
    assert_eq!(answer.id(), id);
    assert_eq!(rig.stats().await.stored(), 1);
}

#[tokio::test]
async fn a_store_that_hangs_does_not_hold_up_the_shutdown() {
    let mut rig = odd(Oddities { claims_hang: true, ..Oddities::default() }).await;
    rig.start(|runner| runner.grace(1.seconds()).handler(Handle::done()));
    rig.tell_to_stop();
    rig.advance_until(100.millis(), &Said::Stopped).await;
    rig.stopped().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_in_time_is_told_as_lost() {
    let mut rig = odd(Oddities { renewals_hang: true, ..Oddities::default() }).await;
    rig.schedule("x").await;
    let handle = Handle::new(async |job, _| {
        job.cancelled().await;
        Ok(Outcome::Done)
    });
    rig.start(|runner| runner.handler(handle.with(|settings| settings.lease = Some(LEASE))));
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    rig.advance_until(250.millis(), &Said::LeaseLost).await;
    rig.tell_to_stop();
    rig.advance_until(250.millis(), &Said::Stopped).await;
    rig.stopped().await.unwrap();
}

#[tokio::test]
async fn a_store_that_takes_long_is_asked_ahead_and_once_more_if_that_was_too_soon() {
    let clock = Arc::new(VirtualClock::default());
    let oddities = Oddities { claim_ahead: 20.millis(), ..Oddities::default() };
    let store = Odd::new(&clock, oddities);
    let mut rig = Rig::on(store.clone(), clock.clone()).await;
    let due = clock.now() + 500.millis();
    let queue = rig.dq.queue(QUEUE).unwrap();
    assert!(queue.schedule("1", "application/json").at(due).await.unwrap().is_stored());
    rig.start(|runner| runner.sweep(60.seconds()).handler(Handle::done()));
    rig.advance_until(1.millis(), &Said::Settled(Settled::Accepted)).await;
    rig.stop().await;
    let asked = store.asked.lock().unwrap().clone();
    assert_eq!(asked[..2], [due - 20.millis(), due]);
}

#[tokio::test]
async fn a_slow_claim_is_not_taken_for_a_wrong_clock() {
    let mut rig = odd(Oddities { claims_take: 200.millis(), ..Oddities::default() }).await;
    rig.schedule("now").await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let later = queue.schedule(r#""later""#, "application/json").after(500.millis());
    assert!(later.await.unwrap().is_stored());
    rig.start(|runner| runner.sweep(60.seconds()).handler(Handle::done()));
    rig.until_settled().await;
    // The claim took 200 ms of the 500: the timer has 300 left.
    rig.clock.advance(300.millis());
    rig.until_settled().await;
    rig.stop().await;
}

#[tokio::test]
async fn leases_are_renewed_though_the_clock_is_set_back() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    rig.start(|runner| {
        runner.handler(hangs().with(|settings| {
            settings.lease = Some(LEASE);
            settings.timeout = Some(Duration::MAX);
        }))
    });
    rig.until(&Said::Started { attempt: 1, deliveries: 1 }).await;
    for _ in 0..3 {
        set_back(&rig.clock, 3_600.seconds());
        // Sleepers wait for the time of day here, which has to come again.
        rig.clock.advance(3_600.seconds());
        rig.advance_until(250.millis(), &Said::Renewed).await;
    }
    rig.tell_to_stop();
    rig.advance_until(1.seconds(), &Said::Stopped).await;
    rig.stopped().await.unwrap();
}

#[tokio::test]
async fn observers_that_panic_stop_nothing() {
    let mut rig = Rig::new().await;
    rig.start(|runner| {
        runner.handler(Handle::done()).observer(|_: &Event<'_>| panic!("a bug in the metrics"))
    });
    for _ in 0..3 {
        rig.schedule("x").await;
        rig.until_settled().await;
    }
    rig.stop().await;
    assert_eq!(rig.stats().await.totals.unwrap().done, 3);
}

#[tokio::test]
async fn run_due_keeps_the_lease_of_each_job_and_goes_in_due_order_over_queues() {
    let rig = Rig::new().await;
    for payload in ["a", "b", "c"] {
        rig.schedule(payload).await;
    }
    let runs = Arc::new(AtomicU32::new(0));
    let (clock, count): (Arc<VirtualClock>, _) = (rig.clock.clone(), Arc::clone(&runs));
    let handle = Handle::new(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        clock.advance(20.seconds());
        async { Ok(Outcome::Done) }
    });
    let runner = rig.dq.runner().without_linked_handlers().handler(handle).build().unwrap();
    assert_eq!(runner.run_due().await.unwrap().jobs, 3);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(rig.stats().await.totals.unwrap().done, 3);
}

#[tokio::test]
async fn an_id_that_is_named_twice_is_one_job() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    rig.start(|runner| runner.handler(Handle::new(async |_, _| Ok(Outcome::dead("no")))));
    rig.until_settled().await;
    rig.stop().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let id = queue.browse(JobState::Dead, None, 1).await.unwrap().jobs[0].job.id;
    assert_eq!(queue.replay(&[id, id]).await.unwrap(), 1);
    assert_eq!(queue.remove(&[id, id]).await.unwrap(), 0, "it is not dead any more");
    assert_eq!(rig.stats().await.ready, 1);
}
