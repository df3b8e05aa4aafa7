//! Bulk changes.

use std::sync::Arc;

use dq_core::{
    Backend, Cancelled, ClaimParams, Clock, DeadKind, DeadReason, DurationExt, Filter, JobState,
    Layer, MemoryBackend, OperateReport, Operation, QueueHandle, Rescheduled, Result, Settlement,
    Verdict, VirtualClock, Want, async_trait,
};

use crate::client::{QUEUE, memory, open, schedule};

async fn kill_due(store: &dyn Backend, message: &str) -> Result<()> {
    let wants = [Want::new(QUEUE.try_into()?, 10_000, 30.seconds())];
    let claimed = store.claim(ClaimParams::new(&wants, 10_000, "worker")).await?;
    let reason = DeadReason::new(DeadKind::Rejected, message);
    let dead = |job: &dq_core::LeasedJob| {
        Settlement::new(job.lease(), Verdict::Dead { reason: reason.clone(), failed: true })
    };
    store.settle(&claimed.jobs.iter().map(dead).collect::<Vec<_>>()).await?;
    Ok(())
}

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

#[tokio::test]
async fn jobs_that_match_are_cancelled_in_steps_with_progress() {
    let (queue, clock) = memory().await;
    schedule_many(&queue, 2_500).await;
    clock.advance(20.minutes());
    let mut steps = Vec::new();
    let filter = Filter::new().key_prefix("a-");
    let cancelled = queue.cancel_where(filter).on_progress(|step| steps.push(step)).await.unwrap();
    assert_eq!(cancelled, 1_250);
    assert!(steps.len() >= 3 && steps.is_sorted_by_key(|step| step.changed), "{steps:?}");
    let last = steps.last().unwrap();
    assert_eq!((last.examined, last.changed), (2_500, 1_250), "ready and scheduled jobs");
    assert_eq!(queue.stats().await.unwrap().stored(), 1_250);
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

#[tokio::test]
async fn a_change_by_id_reads_one_job() {
    let (queue, _) = memory().await;
    schedule_many(&queue, 10).await;
    let id = schedule(&queue, "mine", 5).await.id;
    let mut examined = 0;
    let change = queue.cancel_where(Filter::new().id(id));
    assert_eq!(change.on_progress(|step| examined = step.examined).await.unwrap(), 1);
    assert_eq!(examined, 1);
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
async fn dead_jobs_that_match_are_replayed_once_although_they_die_again() {
    let clock = Arc::new(VirtualClock::default());
    let store =
        Arc::new(DeadAgain { inner: MemoryBackend::new(clock.clone()), clock: clock.clone() });
    let queue = open(store.clone(), &clock).await;
    schedule_many(&queue, 1_500).await;
    clock.advance(1_200.minutes());
    kill_due(&store.inner, "refused: late").await.unwrap();
    clock.advance(300.minutes());
    kill_due(&store.inner, "broken").await.unwrap();
    assert_eq!(queue.stats().await.unwrap().dead, 1_500);
    assert_eq!(queue.replay_where(Filter::new().error("refused")).await.unwrap(), 1_201);
    assert_eq!(queue.replay_all().await.unwrap(), 1_500);
    assert_eq!(queue.remove_where(Filter::new().key_prefix("a-")).await.unwrap(), 750);
    assert_eq!(queue.remove_all().await.unwrap(), 750);
}

#[tokio::test]
async fn dead_jobs_are_replayed_and_removed_after_the_clock_was_set_back() {
    let clock = Arc::new(VirtualClock::default());
    let inner = MemoryBackend::new(clock.clone());
    let store = Arc::new(DeadAgain { inner, clock: clock.clone() });
    let queue = open(store.clone(), &clock).await;
    schedule_many(&queue, 1_500).await;
    clock.advance(1_500.minutes());
    kill_due(&store.inner, "broken").await.unwrap();
    clock.set(clock.now() - 1.hours());
    assert_eq!(queue.replay_all().await.unwrap(), 1_500, "each once, although they die again");
    clock.set(clock.now() - 1.hours());
    assert_eq!(queue.remove_all().await.unwrap(), 1_500);
}

#[tokio::test]
async fn a_purge_reports_its_steps() {
    let (queue, _) = memory().await;
    schedule_many(&queue, 2_500).await;
    let mut changed = 0;
    let purged = queue.purge().on_progress(|step| changed = step.changed).await.unwrap();
    assert_eq!((purged, changed), (2_500, 2_500));
}
