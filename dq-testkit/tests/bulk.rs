//! A bulk change by filter that crashes before and after each call, and is repeated.

use std::sync::Arc;

use crate::common::stepped::Stepped;
use dq_core::{
    Backend, Bulk, Clock, DeadKind, DeadReason, Dq, DurationExt, Filter, JobState, MemoryBackend,
    QueueHandle, Settlement, Timestamp, Verdict, VirtualClock,
};
use dq_testkit::faults::{Crash, CrashPoint};
use dq_testkit::fixture::claim_for;

/// More than one step changes.
const JOBS: u64 = 1_100;

struct Subject {
    queue: QueueHandle,
    crash_point: CrashPoint,
    due: Timestamp,
}

impl Subject {
    async fn new(dead: bool) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let crash_point = CrashPoint::default();
        let store: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock.clone()));
        let stepped = Stepped::over(store.clone(), &crash_point, false);
        let dq = Dq::builder().backend(stepped).clock(clock.clone()).connect().await.unwrap();
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
            let claimed = claim_for(&*store, &["Q"], 10_000, 30.seconds()).await.unwrap();
            let verdict = Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"));
            let settlements = claimed.jobs.iter().map(|leased| leased.lease());
            let settlements: Vec<_> =
                settlements.map(|lease| Settlement::new(lease, verdict.clone())).collect();
            store.settle(&settlements).await.unwrap();
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
