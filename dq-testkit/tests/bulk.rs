//! A bulk change by filter that crashes before and after each call, and is repeated.

use std::sync::Arc;

use dq_core::{
    Backend, BrowseParams, Bulk, Cancelled, ClaimParams, Clock, DeadKind, DeadReason, Dq,
    DurationExt, Filter, JobRef, JobState, Layer, MemoryBackend, OperateReport, Operation, Page,
    QueueHandle, Reschedule, Rescheduled, Result, Settlement, Timestamp, Verdict, VirtualClock,
    Want, async_trait,
};
use dq_testkit::faults::{Crash, CrashPoint};

/// More than one step changes.
const JOBS: u64 = 1_100;

#[derive(Debug)]
struct CrashingStore {
    inner: MemoryBackend,
    crash_point: CrashPoint,
}

#[async_trait]
impl Layer for CrashingStore {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.crash_point.step(Backend::browse(&self.inner, params)).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.crash_point.step(Backend::cancel(&self.inner, jobs)).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.crash_point.step(Backend::reschedule(&self.inner, moves)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.crash_point.step(Backend::operate(&self.inner, operation)).await
    }
}

/// Equally many `a-…` and `b-…` keys.
struct Subject {
    queue: QueueHandle,
    crash_point: CrashPoint,
    due: Timestamp,
}

impl Subject {
    async fn new(dead: bool) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let crash_point = CrashPoint::default();
        let inner = MemoryBackend::new(clock.clone());
        let store = Arc::new(CrashingStore { inner, crash_point: crash_point.clone() });
        let dq = Dq::builder().backend(store.clone()).clock(clock.clone()).connect().await.unwrap();
        let queue = dq.queue("Q").unwrap();
        let due = clock.now() + 1.hours();
        let jobs = (0..JOBS).flat_map(|number| {
            ["a", "b"].map(|prefix| {
                queue.schedule("", "text/plain").at(due).key(format!("{prefix}-{number}"))
            })
        });
        dq.schedule_many(jobs.collect::<Vec<_>>()).await.unwrap();
        if dead {
            clock.advance(2.hours());
            let wants = [Want::new("Q".try_into().unwrap(), 10_000, 30.seconds())];
            let claim = Backend::claim(&store.inner, ClaimParams::new(&wants, 10_000, "worker"));
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            let dead = claim.await.unwrap().jobs;
            let dead = dead.iter().map(|job| {
                let verdict = Verdict::Dead { reason: reason.clone(), failed: true };
                Settlement::new(job.lease(), verdict)
            });
            Backend::settle(&store.inner, &dead.collect::<Vec<_>>()).await.unwrap();
        }
        Self { queue, crash_point, due }
    }

    async fn count(
        &self,
        prefix: &str,
        state: JobState,
        is_due: impl Fn(Timestamp) -> bool,
    ) -> u64 {
        let filter = Filter::new().key_prefix(prefix);
        let (mut count, mut after) = (0, None);
        loop {
            let page = self.queue.browse(state).filter(filter.clone()).limit(1_000).after(after);
            let page = page.await.unwrap();
            count += page.jobs.iter().filter(|view| is_due(view.job.due)).count() as u64;
            after = page.next;
            if after.is_none() {
                return count;
            }
        }
    }
}

/// Repeats a change to the `a-…` jobs after a crash at each call. In the end all of them have
/// changed, and no `b-…` job.
async fn crash_everywhere(
    dead: bool,
    change: impl Fn(&QueueHandle, Filter, Timestamp) -> Bulk<'static>,
    is_changed: impl AsyncFn(&Subject) -> bool,
) {
    let state = if dead { JobState::Dead } else { JobState::Scheduled };
    for crash in [Crash::Before, Crash::After] {
        let mut crashes = 0;
        for step in 1.. {
            let subject = Subject::new(dead).await;
            let to = subject.due + 5.hours();
            let filter = Filter::new().key_prefix("a-");
            subject.crash_point.set(Some((step, crash)));
            let first = change(&subject.queue, filter.clone(), to).await;
            subject.crash_point.set(None);
            let is_complete = first.is_ok();
            if !is_complete {
                crashes += 1;
                change(&subject.queue, filter, to).await.unwrap();
            }
            let place = format!("{crash:?} step {step}");
            assert!(is_changed(&subject).await, "{place}: not all jobs have changed");
            let due = subject.due;
            let others = subject.count("b-", state, |found| found == due).await;
            assert_eq!(others, JOBS, "{place}: other jobs have changed");
            if is_complete {
                break;
            }
        }
        assert!(crashes >= 4, "{crash:?}: only {crashes} crashes");
    }
}

#[tokio::test]
async fn a_cancellation_of_many_jobs_may_crash_anywhere() {
    let change = |queue: &QueueHandle, filter, _| queue.cancel_where(filter);
    crash_everywhere(false, change, async |subject| {
        let totals = subject.queue.stats().await.unwrap().totals.unwrap();
        totals.cancelled == JOBS && subject.count("a-", JobState::Scheduled, |_| true).await == 0
    })
    .await;
}

#[tokio::test]
async fn a_move_of_many_jobs_may_crash_anywhere() {
    let change = |queue: &QueueHandle, filter, to: Timestamp| queue.reschedule_where(filter, to);
    crash_everywhere(false, change, async |subject| {
        let to = subject.due + 5.hours();
        subject.count("a-", JobState::Scheduled, |due| due == to).await == JOBS
    })
    .await;
}

#[tokio::test]
async fn a_replay_of_many_jobs_may_crash_anywhere() {
    let change = |queue: &QueueHandle, filter, _| queue.replay_where(filter);
    crash_everywhere(true, change, async |subject| {
        subject.count("a-", JobState::Dead, |_| true).await == 0
            && subject.queue.stats().await.unwrap().ready == JOBS
    })
    .await;
}

#[tokio::test]
async fn a_removal_of_many_jobs_may_crash_anywhere() {
    let change = |queue: &QueueHandle, filter, _| queue.remove_where(filter);
    crash_everywhere(true, change, async |subject| {
        subject.count("a-", JobState::Dead, |_| true).await == 0
            && subject.queue.stats().await.unwrap().stored() == JOBS
    })
    .await;
}
