//! Targets: which jobs a cancel or a reschedule finds. Both find the same.

use dq_core::{Cancelled, Due, OnConflict, QueueName, Rescheduled, Target, Verdict};

use super::client::{Client, dead, race_with_claim};
use super::failure::{TrialResult, ensure_eq};
use super::store::{LATER, TrialStore, key};
use super::trial::topic;

topic! { "targets":
    job_is_found_by_its_key [keys],
    leased_job_is_running,
    unknown_and_ended_jobs_are_not_found,
    either_the_change_or_a_claim_succeeds,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Cancel,
    /// To [`LATER`].
    Reschedule,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Changed,
    AlreadyRunning,
    NotFound,
}

impl Change {
    fn all(store: &TrialStore) -> Vec<Self> {
        let can = store.capabilities();
        let mut changes = Vec::new();
        changes.extend(can.cancel.then_some(Self::Cancel));
        changes.extend(can.reschedule.then_some(Self::Reschedule));
        changes
    }

    async fn make(
        self,
        client: &Client,
        queue: &QueueName,
        target: impl Into<Target>,
    ) -> TrialResult<Outcome> {
        Ok(match self {
            Self::Cancel => match client.cancel(queue, target).await? {
                Cancelled::Cancelled => Outcome::Changed,
                Cancelled::AlreadyRunning => Outcome::AlreadyRunning,
                _ => Outcome::NotFound,
            },
            Self::Reschedule => match client.reschedule(queue, target, LATER).await? {
                Rescheduled::Moved(_) => Outcome::Changed,
                Rescheduled::AlreadyRunning => Outcome::AlreadyRunning,
                _ => Outcome::NotFound,
            },
        })
    }
}

async fn job_is_found_by_its_key(store: TrialStore) -> TrialResult {
    for change in Change::all(&store) {
        let queue = store.queue();
        store.create(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
        let other = store.create(store.keyed(&queue, Due::NOW, "other", OnConflict::Keep)).await?;
        for unknown in ["K", "k "] {
            let outcome = change.make(&store, &queue, key(unknown)).await?;
            ensure_eq!(outcome, Outcome::NotFound, "{change:?} by an unknown key");
        }
        let outcome = change.make(&store, &queue, key("k")).await?;
        ensure_eq!(outcome, Outcome::Changed, "{change:?} by the key");
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(leased.job.id, other.id, "{change:?} leaves the job with the other key");
    }
    Ok(())
}

async fn leased_job_is_running(store: TrialStore) -> TrialResult {
    for change in Change::all(&store) {
        let leased = store.start(&store.queue()).await?;
        let outcome = change.make(&store, &leased.job.queue, leased.job.id).await?;
        ensure_eq!(outcome, Outcome::AlreadyRunning, "{change:?} of a leased job");
        store.settle_accepted(&leased, Verdict::Done).await?;
    }
    Ok(())
}

async fn unknown_and_ended_jobs_are_not_found(store: TrialStore) -> TrialResult {
    for change in Change::all(&store) {
        let (queue, other) = (store.queue(), store.queue());
        let unknown = store.job(&queue, Due::NOW).id;
        let outcome = change.make(&store, &queue, unknown).await?;
        ensure_eq!(outcome, Outcome::NotFound, "{change:?} in an unknown queue");

        let done = store.run_job(store.job(&queue, Due::NOW), Verdict::Done).await?.id;
        let dead = store.run_job(store.job(&queue, Due::NOW), dead("no")).await?.id;
        store.create(store.job(&queue, LATER)).await?;
        let elsewhere = store.create(store.job(&other, LATER)).await?.id;
        let before = [store.stats(&queue).await?, store.stats(&other).await?];
        for (id, what) in [
            (unknown, "an unknown job"),
            (done, "a job that is done"),
            (dead, "a dead job"),
            (elsewhere, "a job of another queue"),
        ] {
            let outcome = change.make(&store, &queue, id).await?;
            ensure_eq!(outcome, Outcome::NotFound, "{change:?} of {what}");
        }
        let after = [store.stats(&queue).await?, store.stats(&other).await?];
        ensure_eq!(after, before, "{change:?} of jobs that it does not find changes nothing");
    }
    Ok(())
}

async fn either_the_change_or_a_claim_succeeds(store: TrialStore) -> TrialResult {
    let [runner, other] = store.two_clients().await?;
    for change in Change::all(&store) {
        for round in 0..20 {
            let queue = store.queue();
            let id = store.create(store.job(&queue, Due::NOW)).await?.id;
            let caller = if round % 2 == 0 { runner.clone() } else { other.clone() };
            let in_queue = queue.clone();
            let call = async move { change.make(&caller, &in_queue, id).await };
            let (outcome, leased) = race_with_claim(&runner, &queue, call).await?;
            let wanted = if leased.is_empty() { Outcome::Changed } else { Outcome::AlreadyRunning };
            ensure_eq!(outcome, wanted, "either {change:?} or the claim succeeds: {leased:?}");
            store.expect_empty_claim(&queue, "the job was changed or leased").await?;
        }
    }
    Ok(())
}
