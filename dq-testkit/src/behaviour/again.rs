//! Next steps: a settlement gives a job another payload and due time.
//!
//! `settle`, `keys`, `cancel` and `stats` test next steps together with retries.

use bytes::Bytes;
use dq_core::{Due, Settled, Verdict};

use super::client::{Counts, next_step};
use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::{TrialStore, ensure_payload};
use super::trial::topic;

topic! { "again":
    next_step_is_the_same_job_with_another_payload [again],
    next_step_starts_with_new_counts [again],
    payload_of_a_next_step_is_unchanged [again],
}

async fn next_step_is_the_same_job_with_another_payload(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.start_job(store.full_job(&queue, Due::NOW)).await?;
    store.settle_accepted(&first, next_step(Due::NOW, "second step")).await?;
    let second = store.lease_one(&queue).await?;
    let mut wanted = first.job;
    wanted.payload = Bytes::from_static(b"second step");
    wanted.due = second.job.due;
    wanted.first_due = second.job.due;
    wanted.deliveries = 2;
    ensure_eq!(second.job, wanted, "only payload, due time and deliveries have changed");
    ensure!(second.token > first.token, "the token grows from step to step");
    store.settle_accepted(&second, Verdict::Done).await?;
    store.expect_counts(&queue, Counts::NONE, "after the last step").await
}

async fn next_step_starts_with_new_counts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(store.job(&queue, Due::NOW)).await?.id;
    for _ in 0..2 {
        let leased = store.lease_one(&queue).await?;
        store.settle_accepted(&leased, Verdict::retry(Due::NOW, "a reason")).await?;
    }
    store.lose_lease(&queue).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!((leased.job.attempts, leased.job.losses), (2, 1), "the counts of the first step");

    store.settle_accepted(&leased, next_step(Due::NOW, "next")).await?;

    if store.capabilities().reasons {
        let view = store.get_existing(&queue, id).await?;
        ensure_eq!(view.last_error, None, "a new step has not failed");
    }
    let job = store.lose_lease(&queue).await?.job;
    ensure_eq!((job.attempts, job.losses), (0, 0), "a new step has no failed attempts and losses");
    ensure_eq!(job.deliveries, 5, "`deliveries` counts all leases of the job");
    let job = store.lease_one(&queue).await?.job;
    ensure_eq!(job.payload, "next", "the step that was interrupted is repeated, not the first");
    ensure_eq!((job.losses, job.deliveries), (1, 6), "the expiry is counted");
    Ok(())
}

async fn payload_of_a_next_step_is_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW)).await?;
    let large: Vec<u8> = (0..1024 * 1024_u32).map(|n| (n.wrapping_mul(31) >> 7) as u8).collect();
    for payload in [Bytes::from(large), Bytes::new(), Bytes::from_static(b"\0\xff\xfe{not json")] {
        let leased = store.lease_one(&queue).await?;
        let verdict = Verdict::Again { due: Due::NOW, payload: payload.clone() };
        let answer = store.settle(leased.lease(), verdict).await?;
        ensure_eq!(answer, Settled::Accepted, "a step with a payload of {} bytes", payload.len());
        let leased = store.lease_one(&queue).await?;
        ensure_payload(&leased, &payload)?;
        store.settle_accepted(&leased, Verdict::Snooze(Due::NOW)).await?;
    }
    Ok(())
}
