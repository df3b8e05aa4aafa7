//! Scheduling: jobs are stored unchanged, once per id.

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Due, Headers, JobKey, Limits, NewJob, QueueName, Receipt, Scheduled,
    Timestamp, Verdict,
};
use std::time::Duration;

use super::client::{Counts, ids};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore, ensure_payload};
use super::trial::topic;

topic! { "schedule":
    claimed_job_equals_the_scheduled_one,
    receipt_has_the_id_and_the_due_time,
    delay_is_relative_to_the_store_clock,
    due_time_is_exact_to_the_millisecond,
    past_due_time_is_due_at_once,
    due_time_at_the_horizon_is_accepted,
    pending_job_does_not_expire [VirtualTime],
    same_id_is_stored_once,
    repeated_schedule_is_created_in_every_state,
    same_id_twice_in_one_call_is_stored_once,
    same_id_from_many_tasks_is_stored_once,
    answers_are_in_request_order,
    empty_batch_is_accepted,
    batch_of_thousands_is_stored,
    payload_of_one_mebibyte_is_unchanged,
    payload_of_arbitrary_bytes_is_unchanged,
    names_in_any_script_are_accepted,
    names_of_maximum_length_are_not_truncated,
    headers_are_unchanged,
}

async fn claimed_job_equals_the_scheduled_one(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let before = store.now().await?;
    let key = store.capabilities().keys.then(|| super::store::key("order-1001"));
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
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

async fn receipt_has_the_id_and_the_due_time(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + LATER;
    let job = store.job(&queue, due);
    let id = job.id;
    let receipt = store.create(job).await?;
    ensure_eq!((receipt.id, receipt.due), (id, due), "the receipt has the job's id and due time");
    store.expect_counts(&queue, Counts::scheduled(1), "after schedule").await?;
    ensure_eq!(
        store.stats(&queue).await?.next_due,
        Some(due),
        "`next_due` is the due time of the only job"
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
    let fraction = store.create(store.job(&queue, LATER + Duration::from_micros(1))).await?.due;
    ensure!(fraction > before + LATER, "a fraction of a millisecond is rounded up: {fraction}");
    Ok(())
}

async fn due_time_is_exact_to_the_millisecond(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    for ahead in [3_600_001, 3_600_999, 3_601_000, 86_400_123, 31_536_000_007] {
        let at = now + Duration::from_millis(ahead);
        let due = store.create(store.job(&queue, at)).await?.due;
        ensure_eq!(due, at, "due times are exact to the millisecond");
    }
    Ok(())
}

async fn past_due_time_is_due_at_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let now = store.now().await?;
    let recent = store.create(store.job(&queue, now - SOON)).await?.id;
    let oldest = store.create(store.job(&queue, Timestamp::EPOCH)).await?.id;
    let old = store.create(store.job(&queue, now - LATER)).await?.id;
    let leased = store.lease(&queue, 10).await?;
    ensure_eq!(ids(&leased), [oldest, old, recent], "past due times are due at once, in due order");
    Ok(())
}

async fn due_time_at_the_horizon_is_accepted(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = store.now().await? + (Limits::default().horizon - LATER);
    ensure_eq!(
        store.create(store.job(&queue, due)).await?.due,
        due,
        "every due time up to the horizon is accepted"
    );
    store.expect_empty_claim(&queue, "the job is due in 100 years").await
}

async fn pending_job_does_not_expire(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    const DAY: Duration = Duration::from_secs(86_400);
    let job = store.job(&queue, DAY * 1_000);
    let (id, payload) = (job.id, job.payload.clone());
    store.create(job).await?;
    for _ in 0..999 {
        store.wait_for(DAY).await?;
    }
    store.expect_empty_claim(&queue, "it is due tomorrow").await?;
    store.wait_for(DAY * 500).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!((leased.job.id, leased.job.payload), (id, payload), "a pending job does not expire");
    Ok(())
}

async fn same_id_is_stored_once(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.job(&queue, Due::NOW);
    let again = first.clone().payload(Bytes::from_static(b"other")).due(LATER);
    let receipt = store.create(first.clone()).await?;
    ensure_eq!(
        store.schedule(again).await?,
        Scheduled::Created(receipt),
        "a repeated call changes nothing, and the receipt is that of the stored job"
    );
    store.expect_counts(&queue, Counts::ready(1), "after two calls with one id").await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.payload, first.payload, "the payload of the first call is kept");
    Ok(())
}

async fn repeated_schedule_is_created_in_every_state(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, Due::NOW);
    let receipt = store.create(job.clone()).await?;
    // Only the id counts: a repeated call's payload and due time are ignored.
    let repeat = || store.schedule(job.clone().payload(Bytes::from_static(b"other")).due(LATER));
    ensure_eq!(repeat().await?, Scheduled::Created(receipt), "the id of a waiting job");
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(repeat().await?, Scheduled::Created(receipt), "the id of a leased job");
    store.expect_counts(&queue, Counts::running(1), "after a repeated call").await?;
    let retry = store.now().await? + LATER;
    store.settle_accepted(&leased, Verdict::retry(Due::At(retry), "a reason")).await?;
    let retried = Receipt { due: retry, ..receipt };
    ensure_eq!(
        repeat().await?,
        Scheduled::Created(retried),
        "the receipt has the current due time"
    );
    store.expect_counts(&queue, Counts::scheduled(1), "after a repeated call").await?;

    let job = store.job(&queue, Due::NOW);
    let receipt = store.create(job.clone()).await?;
    let leased = store.lease_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    store.settle_accepted(&leased, Verdict::Dead { reason, failed: true }).await?;
    ensure_eq!(store.schedule(job).await?, Scheduled::Created(receipt), "the id of a dead job");
    let counts = Counts { dead: 1, ..Counts::scheduled(1) };
    store.expect_counts(&queue, counts, "after a repeated call").await
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
    let tasks = (0..8).map(|_| {
        let (client, job) = (store.client(), job.clone());
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

async fn answers_are_in_request_order(store: TrialStore) -> TrialResult {
    let queues = [store.queue(), store.queue(), store.queue()];
    let now = store.now().await?;
    let jobs: Vec<NewJob> = (0..60_u64)
        .map(|n| {
            // The due times have another order than the jobs.
            let ahead = LATER + Duration::from_millis(n * 37 % 60);
            store.job(&queues[usize::try_from(n).unwrap_or(0) % 3], now + ahead)
        })
        .collect();
    let answers = store.schedule_all(jobs.clone()).await?;
    for (job, answer) in jobs.iter().zip(answers) {
        ensure_eq!(answer.id(), job.id, "answers are in request order");
        ensure_eq!(Due::At(answer.due()), job.due, "answers are in request order");
    }
    for queue in &queues {
        store
            .expect_counts(queue, Counts::scheduled(20), "after one call for three queues")
            .await?;
    }
    Ok(())
}

async fn empty_batch_is_accepted(store: TrialStore) -> TrialResult {
    ensure!(store.schedule_all(Vec::new()).await?.is_empty(), "an empty batch has no answers");
    Ok(())
}

async fn batch_of_thousands_is_stored(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let jobs: Vec<NewJob> = (0..5_000).map(|_| store.job(&queue, LATER)).collect();
    let wanted: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let answers = store.schedule_all(jobs).await?;
    let found: Vec<_> = answers.iter().map(Scheduled::id).collect();
    ensure!(found == wanted, "each job of a long batch has an answer, in order");
    ensure!(
        answers.iter().all(|answer| matches!(answer, Scheduled::Created(_))),
        "each job of a long batch is `Created`"
    );
    store.expect_counts(&queue, Counts::scheduled(5_000), "after a long batch").await
}

async fn payload_of_one_mebibyte_is_unchanged(store: TrialStore) -> TrialResult {
    let payload: Vec<u8> = (0..1024 * 1024_u32).map(|n| (n.wrapping_mul(31) >> 7) as u8).collect();
    payload_is_unchanged(&store, payload.into()).await
}

async fn payload_of_arbitrary_bytes_is_unchanged(store: TrialStore) -> TrialResult {
    payload_is_unchanged(&store, Bytes::new()).await?;
    payload_is_unchanged(&store, (0..=255).collect::<Vec<u8>>().into()).await?;
    payload_is_unchanged(&store, Bytes::from_static(b"\0\xff\xfe{not json")).await
}

async fn payload_is_unchanged(store: &TrialStore, payload: Bytes) -> TrialResult {
    let queue = store.queue();
    store.create(store.job(&queue, Due::NOW).payload(payload.clone())).await?;
    ensure_payload(&store.lease_one(&queue).await?, &payload)
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
        store.create(job.clone()).await?;
        store.expect_counts(&queue, Counts::ready(1), "with a name in any script").await?;
        let leased = store.lease_one(&queue).await?;
        ensure_eq!(leased.job.key, job.key, "keys in any script are unchanged");
        store.settle_accepted(&leased, Verdict::Done).await?;
    }
    Ok(())
}

async fn names_of_maximum_length_are_not_truncated(store: TrialStore) -> TrialResult {
    let start = store.queue();
    let fill = QueueName::MAX_BYTES - start.as_str().len();
    let shared = format!("{}{}", start.as_str(), "x".repeat(fill - 1));
    // The names differ only in the last byte. A store that truncates them mixes up queues and keys.
    let has_keys = store.capabilities().keys;
    let mut stored = Vec::new();
    for queue in ["y", "z"] {
        let queue = QueueName::new(format!("{shared}{queue}"))?;
        for key in ["y", "z"] {
            let mut job = store.job(&queue, Due::NOW);
            if has_keys {
                job.key = Some(JobKey::new("k".repeat(JobKey::MAX_BYTES - 1) + key)?);
            }
            store.create(job.clone()).await?;
            stored.push(job);
        }
    }
    for jobs in stored.chunks(2) {
        let queue = &jobs[0].queue;
        let mut leased = Vec::new();
        for _ in jobs {
            let claimed = store.lease(queue, 1).await?;
            leased.extend(claimed.into_iter().map(|leased| (leased.job.id, leased.job.key)));
        }
        let mut expected: Vec<_> = jobs.iter().map(|job| (job.id, job.key.clone())).collect();
        // Both jobs may be due in the same millisecond.
        leased.sort();
        expected.sort();
        ensure_eq!(leased, expected, "names of maximum length are not truncated");
        store.expect_empty_claim(queue, "the jobs of the other queue are in that queue").await?;
    }
    Ok(())
}

async fn headers_are_unchanged(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let headers = Headers::from_iter([
        (Headers::TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("empty", ""),
        ("Case", "1"),
        ("case", "2"),
        ("заголовок", "多\nлиний \"'\\"),
    ]);
    store.create(store.job(&queue, Due::NOW).headers(headers.clone())).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.headers, headers, "headers are unchanged");
    Ok(())
}
