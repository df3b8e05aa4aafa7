//! Calls for many jobs: their results, their steps, and bulk changes by filter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{
    Backend, Cancelled, ClaimParams, Clock, DeadKind, DeadReason, DurationExt, Filter, JobState,
    Layer, LeasedJob, MemoryBackend, OperateReport, Operation, QueueHandle, Rescheduled, Result,
    Settlement, Verdict, VirtualClock, Want, async_trait,
};

use crate::client::{QUEUE, connect, memory, open, schedule};

/// Jobs in one step of a call.
const STEP: u64 = 1_000;

async fn kill_due(store: &dyn Backend, message: &str) -> Result<()> {
    let wants = [Want::new(QUEUE.try_into()?, 10_000, 30.seconds())];
    let claimed = store.claim(ClaimParams::new(&wants, 10_000, "worker")).await?;
    let dead = Verdict::dead(DeadReason::new(DeadKind::Rejected, message));
    let settle = |job: &LeasedJob| Settlement::new(job.lease(), dead.clone());
    store.settle(&claimed.jobs.iter().map(settle).collect::<Vec<_>>()).await?;
    Ok(())
}

/// Each job is due a minute after the one before; every other key starts with `a-`.
async fn schedule_many(queue: &QueueHandle, jobs: u64) {
    for number in 0..jobs {
        schedule(queue, &format!("{}-{number}", ["a", "b"][number as usize % 2]), number).await;
    }
}

#[tokio::test]
async fn many_jobs_are_cancelled_and_rescheduled_with_results_in_their_order() {
    let (queue, clock) = memory().await;
    for key in ["a", "b", "c"] {
        schedule(&queue, key, 5).await;
    }
    let results = queue.cancel_many(["b", "none", "a"]).await.unwrap();
    assert_eq!(results, [Cancelled::Cancelled, Cancelled::NotFound, Cancelled::Cancelled]);
    let moves = [("none", 1.hours()), ("c", 2.hours())];
    let results = queue.reschedule_many(moves).await.unwrap();
    assert_eq!(results[0], Rescheduled::NotFound);
    let due = queue.get("c").await.unwrap().unwrap().job.due;
    assert_eq!(due, clock.now() + 2.hours());
    assert!(queue.cancel_many(["c", ""]).await.is_err(), "an invalid key");
    assert!(queue.get("c").await.unwrap().is_some(), "nothing was cancelled");
}

/// Counts the stored jobs in a second task during a call, and checks that no step changes more than
/// [`STEP`]. The test has one thread, so that turns do not depend on speed.
async fn assert_small_steps(queue: &QueueHandle, jobs: u64, call: impl Future<Output = ()>) {
    let is_done = Arc::new(AtomicBool::new(false));
    let (observed, done) = (queue.clone(), is_done.clone());
    let observer = tokio::spawn(async move {
        let mut counts = Vec::new();
        while !is_done.load(Ordering::SeqCst) {
            counts.push(observed.stats().await.unwrap().stored());
            tokio::task::yield_now().await;
        }
        counts
    });
    // The first count is before the call.
    tokio::task::yield_now().await;
    call.await;
    done.store(true, Ordering::SeqCst);
    let counts = observer.await.unwrap();
    let largest = counts.windows(2).map(|pair| pair[0].abs_diff(pair[1])).max();
    assert!(largest <= Some(STEP), "{largest:?} jobs in one step");
    let all = counts.first().zip(counts.last()).map(|(first, last)| first.abs_diff(*last));
    assert!(all >= Some(jobs - STEP), "only {all:?} jobs were seen to change");
}

#[tokio::test]
async fn calls_for_many_jobs_let_other_callers_in_between_two_steps() {
    let jobs = 5 * STEP;
    let clock = Arc::new(VirtualClock::default());
    let dq = connect(Arc::new(MemoryBackend::new(clock.clone())), &clock).await;
    let queue = dq.queue(QUEUE).unwrap();
    let fill = async || {
        let new = (0..jobs).map(|_| queue.schedule("payload", "text/plain").after(1.hours()));
        assert_eq!(dq.schedule_many(new).await.unwrap().len() as u64, jobs);
    };
    assert_small_steps(&queue, jobs, fill()).await;
    let purge = async { assert_eq!(queue.purge().await.unwrap(), jobs) };
    assert_small_steps(&queue, jobs, purge).await;
    fill().await;
    let cancel = async { assert_eq!(queue.cancel_where(Filter::new()).await.unwrap(), jobs) };
    assert_small_steps(&queue, jobs, cancel).await;
}

#[tokio::test]
async fn ready_and_scheduled_jobs_that_match_are_cancelled_with_progress() {
    let (queue, clock) = memory().await;
    schedule_many(&queue, 2_500).await;
    clock.advance(20.minutes());
    let mut steps = Vec::new();
    let filter = Filter::new().key_prefix("a-");
    let cancelled = queue.cancel_where(filter).on_progress(|step| steps.push(step)).await.unwrap();
    assert_eq!(cancelled, 1_250);
    assert!(steps.len() >= 3 && steps.is_sorted_by_key(|step| step.changed), "{steps:?}");
    let last = steps.last().unwrap();
    assert_eq!((last.examined, last.changed), (2_500, 1_250));
    assert_eq!(queue.stats().await.unwrap().stored(), 1_250);

    let id = schedule(&queue, "mine", 5).await.id;
    let mut examined = 0;
    let change = queue.cancel_where(Filter::new().id(id));
    assert_eq!(change.on_progress(|step| examined = step.examined).await.unwrap(), 1);
    assert_eq!(examined, 1, "a change by id reads one job");
}

#[tokio::test]
async fn jobs_that_match_are_rescheduled_once_each() {
    let (queue, clock) = memory().await;
    schedule_many(&queue, 2_500).await;
    // In the middle of the listing: moved jobs turn up again on a later page, and must not move
    // twice.
    let due = clock.now() + 1_200.minutes();
    let moved = queue.reschedule_where(Filter::new(), 1_200.minutes()).await.unwrap();
    assert_eq!(moved, 2_499, "one has this due time already");
    let page = queue.browse(JobState::Scheduled).filter(Filter::new().due(due..=due)).limit(1_000);
    assert_eq!(page.await.unwrap().jobs.len(), 1_000);
    assert_eq!(queue.stats().await.unwrap().next_due, Some(due));
}

/// Replayed jobs die again at once.
#[derive(Debug)]
struct DeadAgain {
    inner: MemoryBackend,
    clock: Arc<VirtualClock>,
}

#[async_trait]
impl Layer for DeadAgain {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let report = Backend::operate(&self.inner, operation).await?;
        self.clock.advance(1.millis());
        kill_due(&self.inner, "again").await?;
        Ok(report)
    }
}

#[tokio::test]
async fn dead_jobs_that_match_are_replayed_once_and_removed_even_if_the_clock_is_set_back() {
    let clock = Arc::new(VirtualClock::default());
    let inner = MemoryBackend::new(clock.clone());
    let store = Arc::new(DeadAgain { inner, clock: clock.clone() });
    let queue = open(store.clone(), &clock).await;
    schedule_many(&queue, 1_500).await;
    clock.advance(1_200.minutes());
    kill_due(&store.inner, "refused: late").await.unwrap();
    clock.advance(300.minutes());
    kill_due(&store.inner, "broken").await.unwrap();
    assert_eq!(queue.stats().await.unwrap().dead, 1_500);
    assert_eq!(queue.replay_where(Filter::new().error("refused")).await.unwrap(), 1_201);
    assert_eq!(queue.replay_all().await.unwrap(), 1_500);
    clock.set(clock.now() - 1.hours());
    assert_eq!(queue.replay_all().await.unwrap(), 1_500);
    assert_eq!(queue.remove_where(Filter::new().key_prefix("a-")).await.unwrap(), 750);
    clock.set(clock.now() - 1.hours());
    assert_eq!(queue.remove_all().await.unwrap(), 750);
}
