//! Isolation: a call for one queue does not affect others.

use dq_core::{
    DeadKind, DeadReason, Due, NewJob, OnConflict, Operation, QueueName, Scheduled, Verdict,
};

use super::client::{Counts, LAPSING_LEASE};
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, Limit, TrialStore};
use super::trial::topic;

topic! { "isolation":
    purge_removes_waiting_and_dead_jobs,
    purge_lets_running_jobs_finish,
    purge_of_an_empty_queue,
    purge_of_thousands_of_jobs,
    purge_reports_whether_more_is_left,
    purge_frees_ids_and_keys [Keys],
    purge_affects_one_queue,
    queue_is_usable_after_a_purge,
    similar_queue_names_are_distinct,
}

async fn purge_removes_waiting_and_dead_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store_one_job_in_every_state(&store, &queue).await?;
    let stored = store.stats(&queue).await?;
    let purged = store.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(
        purged,
        stored.stored() - stored.running,
        "all jobs but the running ones are purged"
    );
    store.expect_counts(&queue, Counts::running(1), "after a purge").await
}

async fn purge_lets_running_jobs_finish(store: TrialStore) -> TrialResult {
    for verdict in [Verdict::Done, Verdict::retry(Due::NOW, "a reason")] {
        let queue = store.queue();
        store.create(store.job(&queue, Due::NOW)).await?;
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(
            store.operate(Operation::Purge { queue: &queue }).await?,
            0,
            "a running job is not purged"
        );
        store.settle_accepted(&leased, verdict).await?;
    }
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let lost = store.lease_one_for(&queue, LAPSING_LEASE).await?;
    store.wait_until(lost.leased_until).await?;
    let purged = store.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(purged, 1, "a lapsed job is waiting, not running");
    Ok(())
}

async fn purge_of_an_empty_queue(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    ensure_eq!(store.operate(Operation::Purge { queue: &queue }).await?, 0, "an unknown queue");
    store_one_job_in_every_state(&store, &queue).await?;
    store.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(
        store.operate(Operation::Purge { queue: &queue }).await?,
        0,
        "a queue that was purged already"
    );
    Ok(())
}

async fn purge_of_thousands_of_jobs(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut jobs: Vec<NewJob> = (0..1_500).map(|_| store.job(&queue, LATER)).collect();
    jobs.extend((0..1_500).map(|_| store.job(&queue, Due::NOW)));
    store.schedule_all(jobs).await?;
    let purged = store.operate(Operation::Purge { queue: &queue }).await?;
    ensure_eq!(purged, 3_000, "a purge removes any number of jobs");
    store.expect_counts(&queue, Counts::NONE, "after a purge").await
}

async fn purge_reports_whether_more_is_left(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    // Not a multiple of a store's step size: after exactly that many jobs, a store may set `more`
    // although no job is left.
    store.schedule_all((0..2_500).map(|_| store.job(&queue, LATER)).collect()).await?;
    let (mut left, mut steps) = (2_500, 0);
    loop {
        let report = store.backend().operate(Operation::Purge { queue: &queue }).await?;
        left -= report.affected.min(left);
        ensure!(left > 0 || steps > 0, "one call removes a limited number of jobs");
        steps += 1;
        store.expect_counts(&queue, Counts::scheduled(left), "after a step of a purge").await?;
        ensure_eq!(report.more, left > 0, "`more` says whether another call would remove jobs");
        if left == 0 {
            return Ok(());
        }
        ensure!(report.affected > 0, "each step of a purge removes jobs");
    }
}

async fn purge_frees_ids_and_keys(store: TrialStore) -> TrialResult {
    // With a history, the id stays taken: see `ids`.
    let queue = store.queue_with(Limit::Off);
    let job = store.keyed(&queue, LATER, "k", OnConflict::Keep);
    store.create(job.clone()).await?;
    store.operate(Operation::Purge { queue: &queue }).await?;
    ensure_matches!(
        store.schedule(job).await?,
        Scheduled::Created(_),
        "the key of a purged job is free"
    );
    // A job with a taken id is also `Created`, but not stored.
    store.expect_counts(&queue, Counts::scheduled(1), "after a purged job is stored again").await
}

async fn purge_affects_one_queue(store: TrialStore) -> TrialResult {
    let (purged, other, paused) = (store.queue(), store.queue(), store.queue());
    for queue in [&purged, &other, &paused] {
        store_one_job_in_every_state(&store, queue).await?;
    }
    if store.capabilities().pause {
        store.operate(Operation::Pause { queue: &paused }).await?;
    }
    let before = store.backend().stats(&[other.clone(), paused.clone()]).await?;
    store.operate(Operation::Purge { queue: &purged }).await?;
    let after = store.backend().stats(&[other, paused]).await?;
    ensure_eq!(after, before, "a purge affects one queue");
    Ok(())
}

async fn queue_is_usable_after_a_purge(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.schedule_all((0..3).map(|_| store.job(&queue, Due::NOW)).collect()).await?;
    store.operate(Operation::Purge { queue: &queue }).await?;
    store.expect_empty_claim(&queue, "the queue was purged").await?;
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(store.lease_one(&queue).await?.job.id, id, "a purged queue can be used again");
    Ok(())
}

async fn similar_queue_names_are_distinct(store: TrialStore) -> TrialResult {
    let start = store.queue();
    // Prefixes, case, pattern characters, blanks, separators, composed and decomposed letters.
    let ends = ["", ":", ":a", "*", "%", "_", "?", "[a]", " ", "a", "A", "é", "e\u{301}", "{a}"];
    let mut queues = Vec::new();
    for end in ends {
        let queue = QueueName::new(format!("{start}{end}"))?;
        store.create(store.job(&queue, Due::NOW)).await?;
        queues.push(queue);
    }
    for (n, queue) in queues.iter().enumerate() {
        for other in &queues[n..] {
            store.expect_counts(other, Counts::ready(1), "after calls for similar names").await?;
        }
        if n % 2 == 0 {
            store.lease_one(queue).await?;
        } else {
            let purged = store.operate(Operation::Purge { queue }).await?;
            ensure!(purged == 1, "queue {queue} has one job, not {purged}");
        }
    }
    Ok(())
}

async fn store_one_job_in_every_state(store: &TrialStore, queue: &QueueName) -> TrialResult {
    store.create(store.job(queue, Due::NOW)).await?;
    let leased = store.lease_one(queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    store.create(store.job(queue, Due::NOW)).await?;
    store.lease_one(queue).await?;
    store.schedule_all(vec![store.job(queue, Due::NOW), store.job(queue, LATER)]).await?;
    Ok(())
}
