//! Forecasts: how many jobs are due per time span.

use std::time::Duration;

use dq_core::{Due, ErrorKind, Operation, QueueName, Timestamp, Verdict};

use super::client::{LAPSING_LEASE, dead};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "forecast":
    jobs_are_counted_between_edges [Forecast],
    job_at_an_edge_counts_after_it [Forecast],
    ready_jobs_are_counted [Forecast],
    only_waiting_jobs_are_counted [Forecast, DeadLetters],
    lapsed_jobs_are_counted [Forecast],
    unknown_queue_has_no_jobs [Forecast],
    fewer_than_two_edges_have_no_counts [Forecast],
    other_queues_do_not_count [Forecast],
    jobs_of_a_paused_queue_are_counted [Forecast, Pause],
    rescheduled_jobs_move [Forecast, Reschedule],
    retried_jobs_move [Forecast],
    edges_that_descend_are_refused [Forecast],
    thousands_of_jobs_are_counted [Forecast],
}

async fn forecast(
    store: &TrialStore,
    queue: &QueueName,
    edges: &[Timestamp],
) -> TrialResult<Vec<u64>> {
    Ok(store.checked().backend().forecast(queue, edges).await?)
}

/// Jobs that are due within 24 hours.
async fn waiting(store: &TrialStore, queue: &QueueName) -> TrialResult<Vec<u64>> {
    let horizon = store.now().await? + LATER * 24;
    forecast(store, queue, &[Timestamp::EPOCH, horizon]).await
}

async fn jobs_are_counted_between_edges(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let start = store.now().await? + LATER;
    let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
    for minutes in [1, 2, 3, 12, 31, 32, 59] {
        store.create(store.job(&queue, at(minutes))).await?;
    }
    let edges = [at(0), at(10), at(20), at(30), at(60)];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [3, 1, 0, 3], "four spans of time");
    let edges = [at(2), at(32)];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [4], "jobs outside are not counted");
    Ok(())
}

async fn job_at_an_edge_counts_after_it(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    store.create(store.job(&queue, due)).await?;
    let ms = Duration::from_millis(1);
    let edges = [due - ms, due, due + ms];
    ensure_eq!(
        forecast(&store, &queue, &edges).await?,
        [0, 1],
        "from an edge until before the next"
    );
    let edges = [due, due, due + ms, due + ms];
    ensure_eq!(
        forecast(&store, &queue, &edges).await?,
        [0, 1, 0],
        "equal edges have no jobs between"
    );
    Ok(())
}

async fn ready_jobs_are_counted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    store.create(store.job(&queue, now - LATER)).await?;
    store.create(store.job(&queue, Timestamp::EPOCH)).await?;
    store.create(store.job(&queue, now + LATER)).await?;
    let edges = [Timestamp::EPOCH, now, now + LATER * 2];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [2, 1], "jobs that are due count, too");
    Ok(())
}

async fn only_waiting_jobs_are_counted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(waiting(&store, &queue).await?, [0], "a running job is not counted");
    store.settle_accepted(&leased, dead("no")).await?;
    ensure_eq!(waiting(&store, &queue).await?, [0], "a dead job is not counted");
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    store.settle_accepted(&leased, Verdict::Done).await?;
    ensure_eq!(waiting(&store, &queue).await?, [0], "a job that has ended is not counted");
    Ok(())
}

async fn lapsed_jobs_are_counted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let due = lost.job.due;
    let edges = [due, due + Duration::from_millis(1)];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [1], "a lapsed job has its old due time");
    Ok(())
}

async fn unknown_queue_has_no_jobs(store: TrialStore) -> TrialResult {
    let edges = [0, 1_000, 2_000].map(Timestamp::from_millis);
    let found = forecast(&store, &store.queue(), &edges).await?;
    ensure_eq!(found, [0, 0], "one number for each pair of edges");
    Ok(())
}

async fn fewer_than_two_edges_have_no_counts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    for queue in [queue, store.queue()] {
        ensure_eq!(forecast(&store, &queue, &[]).await?, [0; 0], "no edge");
        ensure_eq!(forecast(&store, &queue, &[Timestamp::EPOCH]).await?, [0; 0], "one edge");
    }
    Ok(())
}

async fn other_queues_do_not_count(store: TrialStore) -> TrialResult {
    let (here, there) = (store.queue(), store.queue());
    store.create(store.job(&here, LATER)).await?;
    store.schedule_all((0..3).map(|_| store.job(&there, LATER)).collect()).await?;
    ensure_eq!(waiting(&store, &here).await?, [1], "one job in this queue");
    ensure_eq!(waiting(&store, &there).await?, [3], "three jobs in the other one");
    Ok(())
}

async fn jobs_of_a_paused_queue_are_counted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all(vec![store.job(&queue, Due::NOW), store.job(&queue, LATER)]).await?;
    store.operate(Operation::Pause { queue: &queue }).await?;
    ensure_eq!(waiting(&store, &queue).await?, [2], "jobs wait in a paused queue");
    Ok(())
}

async fn rescheduled_jobs_move(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let edges = [now, now + LATER * 2, now + LATER * 4];
    let id = store.create(store.job(&queue, now + LATER)).await?.id;
    ensure_eq!(forecast(&store, &queue, &edges).await?, [1, 0], "before it was moved");
    let _ = store.reschedule(&queue, id, now + LATER * 3).await?;
    ensure_eq!(forecast(&store, &queue, &edges).await?, [0, 1], "after it was moved");
    Ok(())
}

async fn retried_jobs_move(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let leased = store.lease_one(&queue).await?;
    let due = store.now().await? + LATER;
    store.settle_accepted(&leased, Verdict::retry(Due::At(due), "a reason")).await?;
    let edges = [Timestamp::EPOCH, due, due + LATER];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [0, 1], "the retry is in an hour");
    Ok(())
}

async fn edges_that_descend_are_refused(store: TrialStore) -> TrialResult {
    let edges = [2, 1].map(Timestamp::from_millis);
    let answer = store.checked().backend().forecast(&store.queue(), &edges).await;
    let kind = answer.as_ref().map_err(dq_core::Error::kind);
    ensure!(kind == Err(ErrorKind::InvalidInput), "descending edges are refused: {answer:?}");
    Ok(())
}

async fn thousands_of_jobs_are_counted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let start = store.now().await? + LATER;
    let at = |n: u64| start + Duration::from_millis(n);
    store.schedule_all((0..3_000).map(|n| store.job(&queue, at(n))).collect()).await?;
    let edges: Vec<Timestamp> = (0..=30).map(|n| at(n * 100)).collect();
    ensure_eq!(forecast(&store, &queue, &edges).await?, [100; 30], "thirty spans of 100 jobs");
    ensure_eq!(forecast(&store, &queue, &[at(0), at(3_000)]).await?, [3_000], "one span");
    Ok(())
}
