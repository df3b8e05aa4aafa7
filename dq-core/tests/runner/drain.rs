//! Drained stores get no new jobs, and their jobs still run and can be changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{
    Backend, Cancelled, ClaimParams, Dq, Due, DurationExt, Error, ErrorKind, Filter, JobRef,
    JobState, Layer, MemoryBackend, OnConflict, OnRunning, QueueHandle, Rescheduled, Result,
    Scheduled, Settlement, Verdict, VirtualClock, Want, async_trait,
};

use crate::runner::faulty::{Faults, FaultyStore, OpenStore};
use crate::runner::fixture::{FIRST, Fixture, QUEUE, TestHandler};

async fn old_and_new() -> (Fixture, Fixture) {
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(MemoryBackend::new(clock.clone()));
    let old = Fixture::with_backend(store.clone(), clock.clone()).await;
    (old, draining(store, clock).await)
}

async fn draining(old: Arc<dyn Backend>, clock: Arc<VirtualClock>) -> Fixture {
    let new = Arc::new(MemoryBackend::new(clock.clone()));
    let dq = Dq::builder().backend(new).drain(OpenStore::new(old)).clock(clock.clone());
    Fixture::with_client(dq.connect().await.unwrap(), clock)
}

async fn put(queue: &QueueHandle, key: &str) {
    let job = queue.schedule(r#""old""#, "application/json").after(1.hours()).key(key);
    assert!(job.await.unwrap().is_stored());
}

#[tokio::test]
async fn jobs_of_the_old_store_run_and_can_be_changed() {
    let (old, mut new) = old_and_new().await;
    for key in ["runs", "is cancelled", "is moved"] {
        put(&old.dq.queue(QUEUE).unwrap(), key).await;
    }
    let queue = new.dq.queue(QUEUE).unwrap();
    assert_eq!(queue.cancel("is cancelled").await.unwrap(), Cancelled::Cancelled);
    let moved = queue.reschedule("is moved", 2.hours()).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)));
    assert!(queue.get("runs").await.unwrap().is_some());
    new.schedule("new").await;
    assert_eq!(new.stats().await.stored(), 3, "counts include both stores");
    new.start(|runner| runner.handler(TestHandler::done()));
    new.wait_settled().await;
    new.clock.advance(1.hours());
    new.wait_settled().await;
    new.clock.advance(1.hours());
    new.wait_settled().await;
    new.stop().await;
    let stats = old.stats().await;
    assert_eq!(
        (stats.totals.unwrap().done, stats.stored()),
        (2, 0),
        "new jobs go to the new store"
    );
    assert_eq!(new.stats().await.totals.unwrap().done, 3);
}

#[tokio::test]
async fn a_count_includes_the_stores_that_a_change_of_many_jobs_takes() {
    let (old, new) = old_and_new().await;
    for key in ["a-1", "a-2", "b-1"] {
        put(&old.dq.queue(QUEUE).unwrap(), key).await;
    }
    let queue = new.dq.queue(QUEUE).unwrap();
    put(&queue, "a-3").await;
    let filter = Filter::new().key_prefix("a-");
    let states = [JobState::Scheduled, JobState::Ready];
    let count = queue.count(&states, &filter, 100).await.unwrap();
    assert_eq!((count.matching, count.complete), (3, true));
    let count = queue.count(&states, &filter, 1).await.unwrap();
    assert_eq!((count.matching, count.complete), (1, false));
    assert_eq!(queue.cancel_where(filter).await.unwrap(), 3);
}

#[tokio::test]
async fn a_conflict_with_a_key_in_the_old_store_is_resolved_by_the_policy() {
    let (old, new) = old_and_new().await;
    put(&old.dq.queue(QUEUE).unwrap(), "k").await;
    let queue = new.dq.queue(QUEUE).unwrap();
    let job = || queue.schedule(r#""new""#, "application/json").after(2.hours()).key("k");
    assert!(matches!(job().await.unwrap(), Scheduled::Kept(_)));
    assert!(matches!(job().on_conflict(OnConflict::Earliest).await.unwrap(), Scheduled::Kept(_)));
    assert_eq!(new.stats().await.stored(), 1);
    let replaced = job().on_conflict(OnConflict::Replace).await.unwrap();
    assert!(matches!(replaced, Scheduled::Replaced(_)), "{replaced:?}");
    assert_eq!(old.stats().await.stored(), 0);
    assert_eq!(new.stats().await.stored(), 1);
}

#[derive(Debug)]
struct FailsToCancel {
    inner: MemoryBackend,
    has_failed: AtomicBool,
}

impl FailsToCancel {
    fn new(clock: &Arc<VirtualClock>) -> Arc<Self> {
        let inner = MemoryBackend::new(clock.clone());
        Arc::new(Self { inner, has_failed: AtomicBool::new(false) })
    }
}

#[async_trait]
impl Layer for FailsToCancel {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        if !self.has_failed.swap(true, Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
        Backend::cancel(&self.inner, jobs).await
    }
}

/// The main store has the new job when cancelling the old one fails. Before the repeated call, the
/// old job starts, or the policy would prefer it.
#[tokio::test]
async fn a_call_that_was_interrupted_and_is_repeated_cancels_the_old_job_unless_it_runs() {
    for starts in [true, false] {
        let clock = Arc::new(VirtualClock::default());
        let store = FailsToCancel::new(&clock);
        let old = Fixture::with_backend(store.clone(), clock.clone()).await;
        let job = old.dq.queue(QUEUE).unwrap().schedule(r#""old""#, "application/json").key("k");
        assert!(job.after(1.hours() + 2.seconds()).await.unwrap().is_stored());
        let new = draining(store.clone(), clock.clone()).await;
        let (queue, id) = (new.dq.queue(QUEUE).unwrap(), new.dq.new_id());
        let schedule = async || {
            let job = queue.schedule(r#""new""#, "application/json").id(id).key("k");
            job.after(1.hours()).on_conflict(OnConflict::Earliest).await
        };
        let unknown = schedule().await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);

        clock.advance(if starts { 2.hours() } else { 5.seconds() });
        let wants = [Want::new(QUEUE.try_into().unwrap(), 1, 30.seconds())];
        let claimed = Backend::claim(&*store, ClaimParams::new(&wants, 1, "worker")).await.unwrap();
        assert_eq!(claimed.jobs.len(), usize::from(starts));
        let repeated = schedule().await.unwrap();
        let in_new = queue.get(id).await.unwrap().filter(|view| view.state != JobState::Ended);
        // It stays in any case, because it may have replaced other jobs.
        assert!(in_new.is_some());
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
    let first = old.dq.queue(QUEUE).unwrap().schedule(r#""old""#, "application/json").key("k");
    assert!(first.await.unwrap().is_stored());
    let wants = [Want::new(QUEUE.try_into().unwrap(), 1, 30.seconds())];
    let claim = ClaimParams::new(&wants, 1, "worker");
    let store = old.dq.backend();
    let running = Backend::claim(&**store, claim).await.unwrap().jobs.remove(0);
    let (queue, id) = (new.dq.queue(QUEUE).unwrap(), new.dq.new_id());
    let schedule = async || {
        let job = queue.schedule(r#""new""#, "application/json").id(id).key("k");
        job.after(1.hours()).on_running(OnRunning::Detach).await.unwrap()
    };
    assert!(matches!(schedule().await, Scheduled::Created(_)));
    let retry = Settlement::new(running.lease(), Verdict::retry(Due::After(1.hours()), "no"));
    Backend::settle(&**store, &[retry]).await.unwrap();
    assert!(matches!(schedule().await, Scheduled::Created(_)));
    assert_eq!((old.stats().await.stored(), new.stats().await.stored()), (1, 2));
}

#[tokio::test]
async fn pause_and_purge_reach_the_old_store() {
    let (old, new) = old_and_new().await;
    put(&old.dq.queue(QUEUE).unwrap(), "k").await;
    let queue = new.dq.queue(QUEUE).unwrap();
    assert!(queue.pause().await.unwrap());
    assert!(old.stats().await.paused);
    assert!(queue.resume().await.unwrap());
    assert_eq!(queue.purge().await.unwrap(), 1);
    assert_eq!(old.stats().await.stored(), 0);
}

#[tokio::test]
async fn an_old_store_that_hangs_does_not_delay_the_new_one() {
    let clock = Arc::new(VirtualClock::default());
    let old = FaultyStore::new(&clock, Faults { claims_hang: true, ..Faults::default() });
    let mut fixture = draining(old, clock).await;
    fixture.start(|runner| {
        runner.handler(TestHandler::done().with(|settings| settings.concurrency = Some(1)))
    });
    for _ in 0..3 {
        fixture.schedule("x").await;
        fixture.wait_settled().await;
    }
    fixture.stop_by(5.seconds()).await;
}

async fn run_all_tasks() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn stores_that_share_scarce_slots_make_no_calls_while_none_is_free() {
    let clock = Arc::new(VirtualClock::default());
    let [old, new] = [(); 2].map(|()| FaultyStore::new(&clock, Faults::default()));
    let dq = Dq::builder().backend(new.clone()).drain(OpenStore::new(old.clone()));
    let dq = dq.clock(clock.clone()).connect().await.unwrap();
    let mut fixture = Fixture::with_client(dq, clock);
    fixture.schedule("runs").await;
    fixture.schedule("waits for a slot").await;
    fixture.start(|runner| {
        let hangs = TestHandler::hangs();
        let other = TestHandler::done().of_queue("OTHER");
        runner.handler(hangs.with(|settings| settings.concurrency = Some(1))).handler(other)
    });
    fixture.wait_for(&FIRST).await;
    run_all_tasks().await;
    let claims = || [&old, &new].map(|store| store.claims.load(Ordering::SeqCst));
    let before = claims();
    run_all_tasks().await;
    assert_eq!(claims(), before, "no slot was freed and no time has passed");
    fixture.stop_by(5.seconds()).await;
}
