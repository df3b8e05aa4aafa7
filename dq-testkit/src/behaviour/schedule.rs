//! Scheduling: jobs are stored unchanged, once per id.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Due, Headers, JobKey, Limits, Operation, QueueName, Receipt, Scheduled, Timestamp, Verdict,
};

use super::client::{Counts, dead};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, TrialStore, ensure_payload};
use super::trial::topic;

topic! { "schedule":
    claimed_job_equals_the_scheduled_one,
    delay_is_relative_to_the_store_clock,
    due_time_is_exact_to_the_millisecond,
    pending_job_does_not_expire [virtual_time],
    repeated_schedule_is_created_in_every_state,
    same_id_twice_in_one_call_is_stored_once,
    same_id_from_many_tasks_is_stored_once,
    empty_batches_are_accepted,
    largest_job_is_unchanged,
    payload_of_arbitrary_bytes_is_unchanged,
    names_in_any_script_are_accepted,
    names_of_maximum_length_are_not_truncated,
}

async fn claimed_job_equals_the_scheduled_one(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let before = store.now().await?;
    let key = store.capabilities().keys.then(|| super::store::key("order-1001"));
    let headers = Headers::from_iter([
        (Headers::TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("empty", ""),
        ("Case", "1"),
        ("case", "2"),
        ("заголовок", "多\nлиний \"'\\"),
    ]);
    let mut new = store.job(&queue, Due::At(before)).headers(headers).max_attempts(7);
    new.key = key;
    store.create(new.clone()).await?;
    let after = store.now().await?;

    let job = store.lease_one(&queue).await?.job;
    ensure_eq!(job.id, new.id, "the id is unchanged");
    ensure_eq!(job.queue, new.queue, "the queue is unchanged");
    ensure_eq!(job.key, new.key, "the key is unchanged");
    ensure_eq!(job.due, before, "the due time is unchanged");
    ensure_eq!(job.payload, new.payload, "the payload is unchanged");
    ensure_eq!(job.headers, new.headers, "the headers are unchanged");
    ensure_eq!(job.max_attempts, Some(7), "the job's limit of attempts is unchanged");
    ensure!(
        before <= job.created && job.created <= after,
        "`created` is the store's time at the call: {} is not within {before} to {after}",
        job.created
    );
    ensure_eq!(
        (job.attempts, job.deliveries, job.losses),
        (0, 1, 0),
        "the first lease is the first delivery, with no failed attempt and no lost lease"
    );
    Ok(())
}

async fn delay_is_relative_to_the_store_clock(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let before = store.now().await?;
    let due = store.create(store.job(&queue, LATER)).await?.due;
    let after = store.now().await?;
    ensure!(
        before + LATER <= due && due <= after + LATER,
        "a delay is relative to the store's clock: {due} is not within {before} to {after} plus {LATER:?}"
    );
    // Certain on a virtual clock only, which stands still meanwhile.
    let before = store.now().await?;
    let fraction = store.create(store.job(&queue, LATER + Duration::from_micros(1))).await?.due;
    ensure!(fraction > before + LATER, "a fraction of a millisecond is rounded up: {fraction}");
    Ok(())
}

async fn due_time_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let now = store.now().await?;
    let horizon = u64::try_from((Limits::default().horizon - LATER).as_millis());
    let horizon = horizon.map_err(Failure::new)?;
    for ahead in [3_600_001, 3_600_999, 3_601_000, 86_400_123, 31_536_000_007, horizon] {
        let queue = store.queue();
        let at = now + Duration::from_millis(ahead);
        let due = store.create(store.job(&queue, at)).await?.due;
        ensure_eq!(due, at, "the receipt has the due time, exact to the millisecond");
        store.expect_counts(&queue, Counts::scheduled(1), "before the due time").await?;
        ensure_eq!(store.stats(&queue).await?.next_due, Some(at), "the due time of the only job");
    }
    Ok(())
}

async fn pending_job_does_not_expire(store: TrialStore) -> TrialResult {
    const YEARS: Duration = Duration::from_secs(1_000 * 86_400);
    let queue = store.queue();
    let job = store.job(&queue, YEARS);
    store.create(job.clone()).await?;
    store.wait_for(YEARS * 2).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!((leased.job.id, leased.job.payload), (job.id, job.payload), "it has its payload");
    Ok(())
}

async fn repeated_schedule_is_created_in_every_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, Due::NOW);
    let receipt = store.create(job.clone()).await?;
    // Only the id counts: a repeated call's payload and due time are ignored.
    let repeat = || store.schedule(job.clone().payload(Bytes::from_static(b"other")).due(LATER));
    ensure_eq!(repeat().await?, Scheduled::Created(receipt), "the id of a waiting job");
    store.expect_counts(&queue, Counts::ready(1), "after two calls with one id").await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.payload, job.payload, "the payload of the first call is kept");
    ensure_eq!(repeat().await?, Scheduled::Created(receipt), "the id of a leased job");
    store.expect_counts(&queue, Counts::running(1), "after a repeated call").await?;
    let retry = store.now().await? + LATER;
    store.settle_accepted(&leased, Verdict::retry(Due::At(retry), "a reason")).await?;
    let retried = Receipt { due: retry, ..receipt };
    ensure_eq!(repeat().await?, Scheduled::Created(retried), "the current due time");
    store.expect_counts(&queue, Counts::scheduled(1), "after a repeated call").await?;

    let job = store.job(&queue, Due::NOW);
    let receipt = store.run_job(job.clone(), dead("no")).await?;
    ensure_eq!(store.schedule(job).await?, Scheduled::Created(receipt), "the id of a dead job");
    store.expect_empty_claim(&queue, "the job is dead").await
}

async fn same_id_twice_in_one_call_is_stored_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, LATER);
    let answers = store.schedule_all(vec![job.clone(), job]).await?;
    ensure_matches!(
        answers[..],
        [Scheduled::Created(first), Scheduled::Created(second)] if first == second,
        "both of two equal ids in one call are `Created`"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after one call with the same id twice").await
}

async fn same_id_from_many_tasks_is_stored_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, LATER);
    let clients = store.two_clients().await?;
    let tasks = (0..8).map(|n: usize| {
        let (client, job) = (clients[n % 2].clone(), job.clone());
        tokio::spawn(async move { client.schedule(job).await })
    });
    let mut receipts = Vec::new();
    for answer in futures_util::future::join_all(tasks).await {
        match answer.map_err(Failure::new)?? {
            Scheduled::Created(receipt) => receipts.push(receipt),
            answer => ensure_matches!(answer, Scheduled::Created(_), "each call is `Created`"),
        }
    }
    ensure!(
        receipts.iter().all(|receipt| *receipt == receipts[0]),
        "all calls have the receipt of the one stored job: {receipts:?}"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after concurrent calls with one id").await
}

async fn empty_batches_are_accepted(store: TrialStore) -> TrialResult {
    let (backend, can) = (store.backend(), store.capabilities());
    ensure!(backend.schedule(Vec::new()).await?.is_empty(), "schedule without jobs");
    let claimed = store.claim_at_most(10, &[]).await?;
    ensure!(claimed.jobs.is_empty() && claimed.next_due.is_none(), "claim without wants");
    ensure!(backend.settle(&[]).await?.is_empty(), "settle without leases");
    ensure!(backend.renew(&[]).await?.is_empty(), "renew without leases");
    if can.cancel {
        ensure!(backend.cancel(&[]).await?.is_empty(), "cancel without jobs");
    }
    if can.reschedule {
        ensure!(backend.reschedule(&[]).await?.is_empty(), "reschedule without jobs");
    }
    if can.dead_letters {
        let queue = &store.queue();
        for operation in [
            Operation::Replay { queue, jobs: &[], due: Due::NOW },
            Operation::Remove { queue, jobs: &[] },
        ] {
            ensure_eq!(store.operate(operation).await?, 0, "no dead job is named");
        }
    }
    Ok(())
}

async fn largest_job_is_unchanged(store: TrialStore) -> TrialResult {
    let limits = Limits::default();
    let headers = Headers::from_iter([("h", "x".repeat(limits.headers - 1))]);
    let payload: Vec<u8> = (0..limits.payload).map(|n| (n.wrapping_mul(31) >> 7) as u8).collect();
    let job = store
        .job(&store.queue(), Timestamp::EPOCH)
        .headers(headers)
        .payload(Bytes::from(payload))
        .max_attempts(u32::MAX);
    store.checked().create(job.clone()).await?;
    let leased = store.lease_one(&job.queue).await?;
    ensure_payload(&leased, &job.payload)?;
    ensure!(leased.job.headers == job.headers, "the largest headers are unchanged");
    ensure_eq!(leased.job.max_attempts, Some(u32::MAX), "the largest limit of attempts");
    Ok(())
}

async fn payload_of_arbitrary_bytes_is_unchanged(store: TrialStore) -> TrialResult {
    let all: Vec<u8> = (0..=255).collect();
    for payload in [Bytes::new(), all.into(), Bytes::from_static(b"\0\xff\xfe{not json")] {
        let leased =
            store.start_job(store.job(&store.queue(), Due::NOW).payload(payload.clone())).await?;
        ensure_payload(&leased, &payload)?;
    }
    Ok(())
}

async fn names_in_any_script_are_accepted(store: TrialStore) -> TrialResult {
    let names =
        ["订单-超时", "напоминание", "🚚 ✉", "q{x}y", "a'b\"c`d", "50%_\\*?[x]", "a:b/c.d", " "];
    for name in names {
        let queue = store.queue_named(name);
        let mut job = store.job(&queue, Due::NOW);
        if store.capabilities().keys {
            job.key = Some(super::store::key(name));
        }
        let leased = store.start_job(job.clone()).await?;
        store.expect_counts(&queue, Counts::running(1), "with a name in any script").await?;
        ensure_eq!(leased.job.key, job.key, "keys in any script are unchanged");
        store.settle_accepted(&leased, Verdict::Done).await?;
    }
    Ok(())
}

/// The names differ only in the last byte. A store that truncates them mixes up queues and keys.
async fn names_of_maximum_length_are_not_truncated(store: TrialStore) -> TrialResult {
    let start = store.queue();
    let fill = "x".repeat(QueueName::MAX_BYTES - start.as_str().len() - 1);
    for queue in ["y", "z"] {
        let queue = QueueName::new(format!("{start}{fill}{queue}"))?;
        let mut stored = BTreeSet::new();
        for key in ["y", "z"] {
            let mut job = store.job(&queue, Due::NOW);
            if store.capabilities().keys {
                job.key = Some(JobKey::new("k".repeat(JobKey::MAX_BYTES - 1) + key)?);
            }
            store.create(job.clone()).await?;
            stored.insert((job.id, job.key));
        }
        let leased = store.lease(&queue, 10).await?;
        let leased = leased.into_iter().map(|leased| (leased.job.id, leased.job.key)).collect();
        ensure_eq!(stored, leased, "names of maximum length are not truncated");
    }
    Ok(())
}
