//! Forecasts: how many jobs are due per time span.

use std::time::Duration;

use dq_core::{QueueName, Timestamp};

use super::failure::{TrialResult, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "forecast":
    jobs_are_counted_between_edges [forecast],
    job_at_an_edge_counts_after_it [forecast],
}

async fn forecast(
    store: &TrialStore,
    queue: &QueueName,
    edges: &[Timestamp],
) -> TrialResult<Vec<u64>> {
    Ok(store.backend().forecast(queue, edges).await?)
}

async fn jobs_are_counted_between_edges(store: TrialStore) -> TrialResult {
    let (queue, other) = (store.queue(), store.queue());
    let now = store.now().await?;
    let at = |minutes: u64| now + LATER + Duration::from_secs(60 * minutes);
    for minutes in [1, 2, 3, 12, 31, 32, 59] {
        store.create(store.job(&queue, at(minutes))).await?;
    }
    store.create_many(&queue, 2, now - LATER).await?;
    let edges = [at(0), at(10), at(20), at(30), at(60)];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [3, 1, 0, 3], "four spans of time");
    let edges = [Timestamp::EPOCH, at(2), at(32)];
    ensure_eq!(forecast(&store, &queue, &edges).await?, [3, 4], "due jobs count, too");
    ensure_eq!(forecast(&store, &other, &edges).await?, [0, 0], "an unknown queue");
    for edges in [&edges[..0], &edges[..1]] {
        ensure_eq!(forecast(&store, &queue, edges).await?, [0; 0], "fewer than two edges");
    }
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
