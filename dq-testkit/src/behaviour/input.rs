//! Invalid input: an error names the mistake, and nothing is stored.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    BrowseParams, Due, ErrorKind, Headers, JobKey, JobRef, JobState, Limits, NewJob, Operation,
    QueueName, Reschedule, Result, Timestamp,
};

use super::client::Counts;
use super::failure::{Failure, TrialResult, ensure, ensure_eq};
use super::store::{LATER, TrialStore};
use super::trial::topic;

topic! { "input":
    payload_over_the_limit,
    headers_over_the_limit,
    invalid_header_names,
    due_before_the_epoch,
    due_beyond_the_horizon,
    zero_attempts,
    batch_over_the_limit,
    one_invalid_job_refuses_the_batch,
    largest_input_is_accepted,
    invalid_names,
    page_size_out_of_range [Browse],
    reschedule_beyond_the_horizon [Reschedule],
    replay_beyond_the_horizon [DeadLetters],
}

/// Requires `InvalidInput` with `needle` in the message.
fn refused<T: std::fmt::Debug>(answer: Result<T>, needle: &str) -> TrialResult {
    match answer {
        Ok(answer) => Err(Failure::new(format_args!(
            "invalid input is refused, not answered with {answer:?}"
        ))),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::InvalidInput, "invalid input: {error}");
            let text = error.to_string();
            ensure!(text.contains(needle), "the message contains {needle:?}: {text}");
            Ok(())
        }
    }
}

async fn job_is_refused(store: &TrialStore, job: NewJob, needle: &str) -> TrialResult {
    let queue = job.queue.clone();
    refused(store.checked().backend().schedule(vec![job]).await, needle)?;
    store.expect_counts(&queue, Counts::NONE, "after a job was refused").await
}

async fn payload_over_the_limit(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let size = Limits::default().payload + 1;
    let job = store.job(&queue, LATER).payload(Bytes::from(vec![0; size]));
    job_is_refused(&store, job, &size.to_string()).await
}

async fn headers_over_the_limit(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let size = Limits::default().headers;
    let headers = Headers::from_iter([("h", "x".repeat(size))]);
    let job = store.job(&queue, LATER).headers(headers);
    // The one-byte name counts, too.
    job_is_refused(&store, job, &(size + 1).to_string()).await
}

async fn invalid_header_names(store: TrialStore) -> TrialResult {
    for name in ["", "a\0b", "a\nb"] {
        let queue = store.queue();
        let headers = Headers::from_iter([(name, "x")]);
        job_is_refused(&store, store.job(&queue, LATER).headers(headers), "header").await?;
    }
    Ok(())
}

async fn due_before_the_epoch(store: TrialStore) -> TrialResult {
    for millis in [-1, -3_600_000, i64::MIN] {
        let queue = store.queue();
        let job = store.job(&queue, Timestamp::from_millis(millis));
        job_is_refused(&store, job, "1970").await?;
    }
    Ok(())
}

async fn due_beyond_the_horizon(store: TrialStore) -> TrialResult {
    let horizon = Limits::default().horizon;
    let now = store.now().await?;
    for due in [
        Due::After(horizon + LATER),
        Due::After(Duration::MAX),
        Due::At(now + horizon + LATER),
        // A common mistake: microseconds.
        Due::At(Timestamp::from_millis(now.as_millis() * 1_000)),
        Due::At(Timestamp::MAX),
    ] {
        let queue = store.queue();
        job_is_refused(&store, store.job(&queue, due), "days ahead").await?;
    }
    Ok(())
}

async fn zero_attempts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, LATER).max_attempts(0);
    job_is_refused(&store, job, "max_attempts").await
}

async fn batch_over_the_limit(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let job = store.job(&queue, LATER);
    let size = Limits::default().bulk + 1;
    let answer = store.checked().backend().schedule(vec![job; size]).await;
    refused(answer, &size.to_string())?;
    store.expect_counts(&queue, Counts::NONE, "after a batch was refused").await
}

async fn one_invalid_job_refuses_the_batch(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let mut jobs: Vec<_> = (0..5).map(|_| store.job(&queue, LATER)).collect();
    jobs[3].max_attempts = Some(0);
    refused(store.checked().backend().schedule(jobs).await, "max_attempts")?;
    store
        .expect_counts(&queue, Counts::NONE, "after a batch with one invalid job was refused")
        .await
}

async fn largest_input_is_accepted(store: TrialStore) -> TrialResult {
    let limits = Limits::default();
    let queue = store.queue();
    let headers = Headers::from_iter([("h", "x".repeat(limits.headers - 1))]);
    let job = store
        .job(&queue, Timestamp::EPOCH)
        .headers(headers)
        .payload(Bytes::from(vec![7; limits.payload]))
        .max_attempts(u32::MAX);
    store.checked().create(job.clone()).await?;
    let leased = store.lease_one(&queue).await?.job;
    ensure!(leased.payload == job.payload, "the largest payload is unchanged");
    ensure!(leased.headers == job.headers, "the largest headers are unchanged");
    ensure_eq!(leased.max_attempts, Some(u32::MAX), "the largest limit of attempts is unchanged");
    Ok(())
}

async fn invalid_names(_: TrialStore) -> TrialResult {
    // Too long for a queue name and a key.
    let long = "x".repeat(QueueName::MAX_BYTES.max(JobKey::MAX_BYTES) + 1);
    for name in ["", "a\0", "\n", "\u{7f}", "\u{85}", long.as_str()] {
        refused(QueueName::new(name), "queue name")?;
        refused(JobKey::new(name), "key")?;
    }
    let size = QueueName::MAX_BYTES + 1;
    refused(QueueName::new("x".repeat(size)), &size.to_string())?;
    Ok(())
}

async fn page_size_out_of_range(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    // A page has 1 to 1000 jobs.
    for limit in [0, 1_001, usize::MAX] {
        let page = BrowseParams::new(&queue, JobState::Scheduled).limit(limit).payloads(true);
        refused(store.checked().backend().browse(page).await, "page")?;
    }
    ensure!(
        store.checked().list(&queue, JobState::Scheduled, 1_000).await?.is_empty(),
        "the largest page is accepted"
    );
    Ok(())
}

async fn reschedule_beyond_the_horizon(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let receipt = store.create(store.job(&queue, LATER)).await?;
    for (due, needle) in [
        (Due::After(Limits::default().horizon + LATER), "days ahead"),
        (Due::At(Timestamp::from_millis(-1)), "1970"),
    ] {
        let change = Reschedule { job: JobRef::new(queue.clone(), receipt.id), due };
        refused(store.checked().backend().reschedule(&[change]).await, needle)?;
    }
    ensure_eq!(store.stats(&queue).await?.next_due, Some(receipt.due), "no job was moved");
    Ok(())
}

async fn replay_beyond_the_horizon(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let due = Due::After(Limits::default().horizon + LATER);
    let replay = Operation::Replay { queue: &queue, jobs: &store.dead_ids(&queue).await?[..], due };
    refused(store.checked().backend().operate(replay).await, "days ahead")
}
