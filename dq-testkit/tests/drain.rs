//! Calls on a main and a drained store lose no job, wherever they stop or fail.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::failing::FailingStore;
use crate::common::open::OpenStore;
use crate::common::poll::poll_times;
use crate::common::stepped::Stepped;
use dq_core::{
    Backend, BrowseParams, Cancelled, Dq, Due, DurationExt, ErrorKind, JobId, JobKey, JobRef,
    JobState, JobView, Limits, MemoryBackend, NewJob, OnConflict, OnRunning, QueueHandle,
    Reschedule, Rescheduled, Result, Scheduled, VirtualClock,
};
use dq_testkit::faults::{Crash, CrashPoint};
use dq_testkit::fixture::{assert_error, claim_for, queue, run_due};

/// A call that the test may poll or drop.
type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Policies that let the new job replace the old one, due in an hour, and the new job's delay.
const REPLACING: [(OnConflict, Duration); 3] = [
    (OnConflict::Replace, Duration::from_secs(1_800)),
    (OnConflict::Earliest, Duration::from_secs(1_800)),
    (OnConflict::Latest, Duration::from_secs(7_200)),
];

const MAX_STEPS: usize = 50;

struct Fixture {
    clock: Arc<VirtualClock>,
    crash_point: CrashPoint,
    /// Without the layer that stops and fails calls.
    inner: [Arc<dyn Backend>; 2],
    main: Arc<FailingStore>,
    drained: Arc<FailingStore>,
    dq: Dq,
}

impl Fixture {
    async fn new() -> Self {
        let clock = Arc::new(VirtualClock::default());
        let open = || -> Arc<dyn Backend> { Arc::new(MemoryBackend::new(clock.clone())) };
        Self::over(clock.clone(), [open(), open()]).await
    }

    async fn over(clock: Arc<VirtualClock>, inner: [Arc<dyn Backend>; 2]) -> Self {
        let crash_point = CrashPoint::default();
        let [main, drained] = inner
            .each_ref()
            .map(|inner| FailingStore::over(Stepped::over(inner.clone(), &crash_point, false)));
        let mut limits = Limits::default();
        limits.payload = 100;
        let builder = Dq::builder().backend(main.clone()).clock(clock.clone()).limits(limits);
        let builder = builder.drain(OpenStore::boxed(drained.clone()));
        let dq = builder.connect().await.unwrap();
        Self { clock, crash_point, inner, main, drained, dq }
    }

    /// The drained store holds the job "old" with the key "K", due in an hour.
    async fn with_old_job() -> Self {
        let fixture = Self::new().await;
        fixture.add_old_job().await;
        fixture
    }

    async fn add_old_job(&self) {
        let job = NewJob::new(self.dq.new_id(), queue("Q"), 1.hours(), "old".into());
        let job = job.key(JobKey::new("K").unwrap());
        assert!(self.inner[1].schedule(vec![job]).await.unwrap()[0].is_stored());
    }

    fn queue(&self) -> QueueHandle {
        self.dq.queue("Q").unwrap()
    }

    fn schedule(
        &self,
        id: JobId,
        (policy, delay): (OnConflict, Duration),
    ) -> Call<'static, Scheduled> {
        let job = self.queue().schedule("new", "text/plain").after(delay).key("K").id(id);
        job.on_conflict(policy).into_future()
    }

    /// The payloads of the jobs that wait in the main and in the drained store.
    async fn waiting(&self) -> [Vec<String>; 2] {
        let mut waiting = [Vec::new(), Vec::new()];
        for (store, payloads) in self.inner.iter().zip(&mut waiting) {
            let (queue, state) = (queue("Q"), JobState::Scheduled);
            let params = BrowseParams::new(&queue, state).payloads(true);
            let jobs = store.browse(params).await.unwrap().jobs;
            let payload = |view: JobView| String::from_utf8(view.job.payload.to_vec());
            payloads.extend(jobs.into_iter().map(|view| payload(view).unwrap()));
        }
        waiting
    }

    /// Leases the old job. Returns `false` if there is none.
    async fn start_old_job(&self) -> bool {
        let job = JobRef::new(queue("Q"), JobKey::new("K").unwrap());
        self.inner[1].reschedule(&[Reschedule { job, due: Due::NOW }]).await.unwrap();
        let claimed = claim_for(&*self.inner[1], &["Q"], 1, Duration::from_secs(60)).await;
        !claimed.unwrap().jobs.is_empty()
    }

    /// Polls the call `polls` times, starts the old job and finishes the call.
    async fn start_old_job_after(
        &self,
        polls: usize,
        call: &mut Call<'_, Scheduled>,
    ) -> Interrupted {
        let completed = poll_times(call, polls);
        let was_stored = !self.waiting().await[0].is_empty();
        let started = self.start_old_job().await;
        let is_complete = completed.is_some();
        let result = match completed {
            Some(result) => result.unwrap(),
            None => call.await.unwrap(),
        };
        Interrupted { result, is_complete, started, was_stored }
    }
}

/// A call during which the test tried to start the old job.
struct Interrupted {
    result: Scheduled,
    /// Whether the call ended before.
    is_complete: bool,
    /// Whether the old job was still there, and started.
    started: bool,
    /// Whether the new job was stored before.
    was_stored: bool,
}

#[track_caller]
fn assert_old_or_new_waits(waiting: &[Vec<String>; 2], context: &str) {
    let [main, drained] = waiting;
    assert!(!main.is_empty() || !drained.is_empty(), "{context}: the job is in neither store");
    assert!(main.len() <= 1 && drained.len() <= 1, "{context}: {waiting:?}");
}

/// How a `schedule` call ends early.
#[derive(Debug, Clone, Copy)]
enum Interruption {
    /// The caller drops the call after this many polls.
    Dropped { polls: usize },
    /// A call to a store fails, before or after it takes effect.
    Failed { step: usize, crash: Crash },
}

impl Interruption {
    /// Makes the call. Returns `None` if it was interrupted before it ended.
    async fn schedule(
        self,
        fixture: &Fixture,
        id: JobId,
        replacing: (OnConflict, Duration),
    ) -> Option<Scheduled> {
        match self {
            Self::Dropped { polls } => {
                poll_times(&mut fixture.schedule(id, replacing), polls).map(Result::unwrap)
            }
            Self::Failed { step, crash } => {
                fixture.crash_point.set(Some((step, crash)));
                let result = fixture.schedule(id, replacing).await;
                fixture.crash_point.set(None);
                result.ok()
            }
        }
    }
}

/// The caller repeats the call with the same id, as the docs of `Schedule` advise, or with another.
#[tokio::test]
async fn a_replaced_job_is_never_lost_wherever_the_call_is_interrupted() {
    let interruptions: [fn(usize) -> Interruption; 3] = [
        |polls| Interruption::Dropped { polls },
        |step| Interruption::Failed { step, crash: Crash::Before },
        |step| Interruption::Failed { step, crash: Crash::After },
    ];
    for replacing in REPLACING {
        for (interruption, repeats_id) in
            interruptions.into_iter().flat_map(|it| [(it, true), (it, false)])
        {
            for place in 1.. {
                let interruption = interruption(place);
                let context = format!("{replacing:?}, {interruption:?}, same id: {repeats_id}");
                assert!(place < MAX_STEPS, "{context}: the call does not end");
                let fixture = Fixture::with_old_job().await;
                let id = fixture.dq.new_id();

                let completed = interruption.schedule(&fixture, id, replacing).await;

                assert_old_or_new_waits(&fixture.waiting().await, &context);
                let id = if repeats_id { id } else { fixture.dq.new_id() };
                let again = fixture.schedule(id, replacing).await.unwrap();
                // With another id, a job with an equal due time stays.
                let kept_equal = matches!(again, Scheduled::Kept(_))
                    && replacing.0 != OnConflict::Replace
                    && !repeats_id;
                assert!(again.is_stored() || kept_equal, "{context}: {again:?}");
                let [main, drained] = fixture.waiting().await;
                assert_eq!((main, drained), (vec!["new".to_owned()], Vec::new()), "{context}");
                if let Some(result) = completed {
                    assert!(matches!(result, Scheduled::Replaced(_)), "{context}: {result:?}");
                    assert!(place > 3, "{context}: the call makes few calls to stores");
                    break;
                }
            }
        }
    }
}

/// Both jobs run, unless the call is repeated.
#[tokio::test]
async fn an_unavailable_drained_store_makes_the_outcome_unknown() {
    let fixture = Fixture::with_old_job().await;
    let id = fixture.dq.new_id();
    fixture.drained.fail(|method| method == "cancel");
    let result = fixture.schedule(id, REPLACING[0]).await;
    assert_error(result, ErrorKind::OutcomeUnknown, &["memory", "same job id"]);
    assert_eq!(fixture.waiting().await, [vec!["new".to_owned()], vec!["old".to_owned()]]);
    fixture.drained.recover();
    let result = fixture.schedule(id, REPLACING[0]).await.unwrap();
    assert!(matches!(result, Scheduled::Replaced(new) if new.id == id), "{result:?}");
    assert_eq!(fixture.waiting().await, [vec!["new".to_owned()], vec![]]);
}

/// The old job starts at each step. The new one is not stored, unless the old one was cancelled
/// before.
#[tokio::test]
async fn the_new_job_is_taken_back_if_the_old_one_starts_meanwhile() {
    let mut started_late = false;
    for polls in 1..=MAX_STEPS {
        let fixture = Fixture::with_old_job().await;
        let mut call = fixture.schedule(fixture.dq.new_id(), REPLACING[0]);
        let Interrupted { result, is_complete, started, was_stored } =
            fixture.start_old_job_after(polls, &mut call).await;
        started_late |= started && was_stored;
        let [main, drained] = fixture.waiting().await;
        assert!(drained.is_empty());
        if started {
            assert!(matches!(result, Scheduled::AlreadyRunning(_)), "{polls} polls: {result:?}");
            assert!(main.is_empty(), "{polls} polls: the new job is stored: {main:?}");
        } else {
            assert!(matches!(result, Scheduled::Replaced(_)), "{polls} polls: {result:?}");
            assert_eq!(main, ["new"], "{polls} polls");
        }
        if is_complete {
            assert!(started_late, "the old job never started while the new one was stored");
            return;
        }
    }
    panic!("the call does not end within {MAX_STEPS} polls");
}

#[tokio::test]
async fn a_new_job_that_has_run_is_reported_as_created() {
    let fixture = Fixture::with_old_job().await;
    let at_once = (OnConflict::Replace, Duration::ZERO);
    let mut call = fixture.schedule(fixture.dq.new_id(), at_once);
    let mut ran = Vec::new();
    while ran.is_empty() {
        assert!(poll_times(&mut call, 1).is_none());
        ran = run_due(&*fixture.inner[0], "Q").await;
    }
    assert!(fixture.start_old_job().await);
    assert!(matches!(call.await.unwrap(), Scheduled::Created(_)));
    assert_eq!(ran, ["new"]);
}

/// The call and the replacement interrupt each other at each step.
#[tokio::test]
async fn a_job_is_found_at_every_moment_of_its_replacement() {
    // Returns whether the call found the job.
    let by_key = |queue: QueueHandle, method: &'static str| -> Call<'static, bool> {
        Box::pin(async move {
            Ok(match method {
                "get" => queue.get("K").await?.is_some(),
                "reschedule" => {
                    matches!(queue.reschedule("K", 3.hours()).await?, Rescheduled::Moved(_))
                }
                _ => queue.cancel("K").await? == Cancelled::Cancelled,
            })
        })
    };
    for method in ["get", "reschedule", "cancel"] {
        for polls in 0..=MAX_STEPS {
            let fixture = Fixture::with_old_job().await;
            let mut replacement = fixture.schedule(fixture.dq.new_id(), REPLACING[0]);
            let completed = poll_times(&mut replacement, polls);
            let found = by_key(fixture.queue(), method).await.unwrap();
            assert!(found, "{method} after {polls} polls of the replacement");
            match completed {
                Some(_) => break,
                None => assert!(replacement.await.unwrap().is_stored()),
            }
            assert!(polls < MAX_STEPS);
        }
        for polls in 0..=MAX_STEPS {
            let fixture = Fixture::with_old_job().await;
            let mut call = by_key(fixture.queue(), method);
            if let Some(found) = poll_times(&mut call, polls) {
                assert!(found.unwrap());
                break;
            }
            let result = fixture.schedule(fixture.dq.new_id(), REPLACING[0]).await.unwrap();
            assert!(result.is_stored(), "{result:?}");
            let found = call.await.unwrap();
            assert!(found, "{method} after {polls} polls of its own");
            assert!(polls < MAX_STEPS);
        }
    }
}

#[tokio::test]
async fn a_cancel_that_fails_halfway_has_an_unknown_outcome() {
    let fixture = Fixture::with_old_job().await;
    fixture.main.fail(|method| method == "cancel");
    let result = fixture.queue().cancel("K").await;
    assert_error(result, ErrorKind::OutcomeUnknown, &["memory"]);
    let fixture = Fixture::new().await;
    fixture.main.fail(|method| method == "cancel");
    let result = fixture.queue().cancel("K").await;
    assert_error(result, ErrorKind::Unavailable, &[]);
}

#[tokio::test]
async fn an_invalid_job_of_a_bulk_changes_no_store() {
    let fixture = Fixture::with_old_job().await;
    let job = |key: &str, payload: String| {
        let job = fixture.queue().schedule(payload, "text/plain").after(1.hours());
        job.key(key).on_conflict(OnConflict::Replace)
    };
    let jobs = [job("K", "new".to_owned()), job("L", "x".repeat(101))];
    let result = fixture.dq.schedule_many(jobs).await;
    assert_error(result, ErrorKind::InvalidInput, &["101"]);
    assert_eq!(fixture.waiting().await, [vec![], vec!["old".to_owned()]]);
}

#[tokio::test]
async fn an_id_that_a_drained_store_holds_is_not_scheduled_again() {
    let fixture = Fixture::with_old_job().await;
    let old = fixture.queue().get("K").await.unwrap().unwrap().job.id;
    let result = fixture.schedule(old, REPLACING[0]).await.unwrap();
    assert!(matches!(result, Scheduled::Created(receipt) if receipt.id == old), "{result:?}");
    assert_eq!(fixture.waiting().await, [vec![], vec!["old".to_owned()]]);
    assert!(fixture.start_old_job().await);
    let result = fixture.schedule(old, REPLACING[0]).await.unwrap();
    assert!(matches!(result, Scheduled::Created(receipt) if receipt.id == old), "{result:?}");
    assert_eq!(fixture.waiting().await, [vec![], Vec::<String>::new()]);
}

#[tokio::test]
async fn a_job_whose_key_runs_in_the_main_store_cancels_nothing() {
    let fixture = Fixture::new().await;
    let id = fixture.dq.new_id();
    let first = fixture.schedule(id, (OnConflict::Keep, Duration::ZERO)).await.unwrap();
    assert!(first.is_stored(), "{first:?}");
    claim_for(&*fixture.inner[0], &["Q"], 1, 1.hours()).await.unwrap();
    fixture.add_old_job().await;
    let result = fixture.schedule(fixture.dq.new_id(), REPLACING[0]).await.unwrap();
    assert!(matches!(result, Scheduled::AlreadyRunning(running) if running.id == id), "{result:?}");
    assert_eq!(fixture.waiting().await, [vec![], vec!["old".to_owned()]]);
}

#[tokio::test]
async fn a_job_whose_id_is_pinned_or_in_another_queue_cancels_nothing() {
    let fixture = Fixture::with_old_job().await;
    let pinned = fixture.dq.new_id();
    let mut job = NewJob::new(pinned, queue("Q"), 1.hours(), "ended".into());
    job.remember = 1.days();
    assert!(fixture.inner[0].schedule(vec![job]).await.unwrap()[0].is_stored());
    let job = JobRef::new(queue("Q"), pinned);
    assert_eq!(fixture.inner[0].cancel(&[job]).await.unwrap(), [Cancelled::Cancelled]);
    let result = fixture.schedule(pinned, REPLACING[0]).await.unwrap();
    assert!(matches!(result, Scheduled::Ended(_)), "{result:?}");

    let taken = fixture.dq.new_id();
    let job = NewJob::new(taken, queue("R"), 1.hours(), "other".into());
    assert!(fixture.inner[0].schedule(vec![job]).await.unwrap()[0].is_stored());
    let result = fixture.schedule(taken, REPLACING[0]).await.unwrap();
    assert!(matches!(result, Scheduled::Kept(kept) if kept.id == taken), "{result:?}");
    assert_eq!(fixture.waiting().await, [vec![], vec!["old".to_owned()]]);
}

/// The old job runs, or starts at each step.
#[tokio::test]
async fn a_job_that_detaches_a_running_one_is_stored_whenever_that_starts() {
    let mut started_late = false;
    for polls in 0..=MAX_STEPS {
        let fixture = Fixture::with_old_job().await;
        let job = fixture.queue().schedule("new", "text/plain").after(30.minutes()).key("K");
        let job = job.on_conflict(OnConflict::Replace).on_running(OnRunning::Detach);
        let mut call: Call<'_, Scheduled> = job.into_future();
        let Interrupted { result, is_complete, started, was_stored } =
            fixture.start_old_job_after(polls, &mut call).await;
        started_late |= started && was_stored;
        assert!(result.is_stored(), "{polls} polls: {result:?}");
        assert_eq!(fixture.waiting().await, [vec!["new".to_owned()], vec![]], "{polls} polls");
        if is_complete {
            assert!(started_late, "the old job never started while the new one was stored");
            return;
        }
    }
    panic!("the call does not end within {MAX_STEPS} polls");
}

/// The same store is configured twice by mistake.
#[tokio::test]
async fn a_store_that_is_drained_into_itself_loses_no_job() {
    let clock = Arc::new(VirtualClock::default());
    let store: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock.clone()));
    let fixture = Fixture::over(clock, [store.clone(), store]).await;
    fixture.add_old_job().await;
    for replacing in REPLACING {
        let result = fixture.schedule(fixture.dq.new_id(), replacing).await.unwrap();
        assert_eq!(fixture.waiting().await[0], ["new"], "{replacing:?}: {result:?}");
        fixture.clock.advance(Duration::from_millis(1));
    }
}

#[tokio::test]
async fn every_store_is_closed_even_if_one_fails_to_close() {
    let fixture = Fixture::new().await;
    fixture.main.fail(|method| method == "close");
    assert_error(fixture.dq.close().await, ErrorKind::Unavailable, &[]);
    let error = fixture.inner[1].now().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
