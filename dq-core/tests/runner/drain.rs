//! Drained stores get no new jobs, and their jobs still run and can be changed.

use dq_core::{
    Backend, Cancelled, Due, DurationExt, ErrorKind, Filter, JobState, OnConflict, OnRunning,
    QueueHandle, Rescheduled, Scheduled, Settlement, Verdict,
};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{FIRST, Fixture, TestHandler, settle_down};

async fn old_and_new() -> (Fixture, Fixture) {
    let old = Fixture::new().await;
    let new = Fixture::draining(&old).await;
    (old, new)
}

async fn put(queue: &QueueHandle, key: &str) {
    let job = queue.schedule(r#""old""#, "application/json").after(1.hours()).key(key);
    assert!(job.await.unwrap().is_stored());
}

#[tokio::test]
async fn jobs_of_the_old_store_run_and_can_be_changed() {
    let (old, mut new) = old_and_new().await;
    for key in ["runs", "is cancelled", "is moved"] {
        put(&old.queue(), key).await;
    }
    let queue = new.queue();
    assert_eq!(queue.cancel("is cancelled").await.unwrap(), Cancelled::Cancelled);
    let moved = queue.reschedule("is moved", 2.hours()).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)));
    assert!(queue.get("runs").await.unwrap().is_some());
    new.schedule("new").await;
    assert_eq!(new.stats().await.stored(), 3, "counts include both stores");

    new.run(TestHandler::done());
    new.wait_settled().await;
    for _ in 0..2 {
        new.clock.advance(1.hours());
        new.wait_settled().await;
    }
    new.stop().await;
    assert_eq!(old.stats().await.stored(), 0);
    assert_eq!((old.done().await, new.done().await), (2, 3), "new jobs go to the new store");
}

#[tokio::test]
async fn counts_and_changes_of_many_jobs_include_the_old_store() {
    let (old, new) = old_and_new().await;
    for key in ["a-1", "a-2", "b-1"] {
        put(&old.queue(), key).await;
    }
    let queue = new.queue();
    put(&queue, "a-3").await;
    let filter = Filter::new().key_prefix("a-");
    let states = [JobState::Scheduled, JobState::Ready];
    for (max_compared, wanted) in [(100, (3, true)), (1, (1, false))] {
        let count = queue.count(&states, &filter, max_compared).await.unwrap();
        assert_eq!((count.matching, count.complete), wanted);
    }
    assert_eq!(queue.cancel_where(filter).await.unwrap(), 3);

    assert!(queue.pause().await.unwrap());
    assert!(old.stats().await.paused);
    assert!(queue.resume().await.unwrap());
    assert_eq!(queue.purge().await.unwrap(), 1);
    assert_eq!(old.stats().await.stored(), 0);
}

#[tokio::test]
async fn a_conflict_with_a_key_in_the_old_store_is_resolved_by_the_policy() {
    let (old, new) = old_and_new().await;
    put(&old.queue(), "k").await;
    let queue = new.queue();
    let job = || queue.schedule(r#""new""#, "application/json").after(2.hours()).key("k");
    assert!(matches!(job().await.unwrap(), Scheduled::Kept(_)));
    assert!(matches!(job().on_conflict(OnConflict::Earliest).await.unwrap(), Scheduled::Kept(_)));
    assert_eq!(new.stats().await.stored(), 1);
    let replaced = job().on_conflict(OnConflict::Replace).await.unwrap();
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!((old.stats().await.stored(), new.stats().await.stored()), (0, 1));
}

/// The main store has the new job when cancelling the old one fails. Before the repeated call, the
/// old job starts, or the policy would prefer it.
#[tokio::test]
async fn a_call_that_was_interrupted_and_is_repeated_cancels_the_old_job_unless_it_runs() {
    for starts in [true, false] {
        let old = Fixture::faulty(Faults { cancel_fails: true, ..Faults::default() }).await;
        let job = old.queue().schedule(r#""old""#, "application/json").key("k");
        assert!(job.after(1.hours() + 2.seconds()).await.unwrap().is_stored());
        let new = Fixture::draining(&old).await;
        let (queue, id) = (new.queue(), new.dq.new_id());
        let schedule = async || {
            let job = queue.schedule(r#""new""#, "application/json").id(id).key("k");
            job.after(1.hours()).on_conflict(OnConflict::Earliest).await
        };
        assert_eq!(schedule().await.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        old.store.change(|faults| faults.cancel_fails = false);

        old.clock.advance(if starts { 2.hours() } else { 5.seconds() });
        assert_eq!(old.claim(30.seconds()).await.len(), usize::from(starts));
        let repeated = schedule().await.unwrap();
        let in_new = queue.get(id).await.unwrap().filter(|view| view.state != JobState::Ended);
        assert!(in_new.is_some(), "it stays in any case: it may have replaced other jobs");
        if starts {
            assert!(matches!(repeated, Scheduled::Created(_)), "{repeated:?}");
        } else {
            assert!(matches!(repeated, Scheduled::Replaced(_)), "{repeated:?}");
            assert_eq!(old.stats().await.stored(), 0);
        }
    }
}

/// A detached job gets its key back on retry, beside the job stored with the key.
#[tokio::test]
async fn a_repeated_call_leaves_a_detached_job_that_is_retried() {
    let (old, new) = old_and_new().await;
    let first = old.queue().schedule(r#""old""#, "application/json").key("k");
    assert!(first.await.unwrap().is_stored());
    let running = old.claim(30.seconds()).await.remove(0);
    let (queue, id) = (new.queue(), new.dq.new_id());
    let schedule = async || {
        let job = queue.schedule(r#""new""#, "application/json").id(id).key("k");
        job.after(1.hours()).on_running(OnRunning::Detach).await.unwrap()
    };
    assert!(matches!(schedule().await, Scheduled::Created(_)));
    let retry = Settlement::new(running.lease(), Verdict::retry(Due::After(1.hours()), "no"));
    Backend::settle(&*old.store, &[retry]).await.unwrap();
    assert!(matches!(schedule().await, Scheduled::Created(_)));
    assert_eq!((old.stats().await.stored(), new.stats().await.stored()), (1, 2));
}

#[tokio::test]
async fn an_old_store_that_hangs_does_not_delay_the_new_one() {
    let old = Fixture::faulty(Faults { claims_hang: true, ..Faults::default() }).await;
    let mut fixture = Fixture::draining(&old).await;
    fixture.run(TestHandler::done().one_at_once());
    for _ in 0..3 {
        fixture.schedule("x").await;
        fixture.wait_settled().await;
    }
    fixture.stop_by(5.seconds()).await;
}

#[tokio::test]
async fn stores_that_share_scarce_slots_make_no_calls_while_none_is_free() {
    let (old, mut new) = old_and_new().await;
    new.schedule("runs").await;
    new.schedule("waits for a slot").await;
    new.start(|runner| {
        let other = TestHandler::done().of_queue("OTHER");
        runner.handler(TestHandler::hangs().one_at_once()).handler(other)
    });
    new.wait_for(&FIRST).await;
    settle_down().await;
    let claims = || [&old, &new].map(|fixture| fixture.store.calls("claim"));
    let before = claims();
    settle_down().await;
    assert_eq!(claims(), before, "no slot was freed and no time has passed");
    new.stop_by(5.seconds()).await;
}
