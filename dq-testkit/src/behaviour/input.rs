//! Bad input is an answer, not an accident: a typed error, and nothing is stored.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    BrowseParams, Due, ErrorKind, Headers, JobKey, JobRef, JobState, Limits, NewJob, Operation,
    QueueName, Reschedule, Result, Timestamp,
};

use super::failure::{Failure, Passed, ensure, ensure_eq};
use super::handle::Counts;
use super::stand::{LATER, Stand};
use super::trial::topic;

topic! { "input":
    payload_over_the_limit,
    headers_over_the_limit,
    header_names_that_are_none,
    due_before_the_epoch,
    due_beyond_the_horizon,
    no_attempts_at_all,
    bulk_over_the_limit,
    one_bad_job_spoils_the_call,
    largest_input_is_accepted,
    names_that_are_none,
    page_of_no_or_too_many_jobs [Browse],
    move_beyond_the_horizon [Reschedule],
    replay_beyond_the_horizon [DeadLetters],
}

/// Checks that a call was refused with a message that names what is wrong.
fn refused<T: std::fmt::Debug>(answer: Result<T>, names: &str) -> Passed {
    match answer {
        Ok(answer) => Err(Failure::new(format_args!("bad input is refused, not {answer:?}"))),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::InvalidInput, "the caller's mistake: {error}");
            let text = error.to_string();
            ensure!(text.contains(names), "the message names {names:?}: {text}");
            Ok(())
        }
    }
}

/// Checks that a job is refused and leaves nothing behind.
async fn job_is_refused(stand: &Stand, job: NewJob, names: &str) -> Passed {
    let queue = job.queue.clone();
    refused(stand.checked().backend().schedule(vec![job]).await, names)?;
    stand.expect(&queue, Counts::NONE, "after a job was refused").await
}

async fn payload_over_the_limit(stand: Stand) -> Passed {
    let queue = stand.queue();
    let size = Limits::default().payload + 1;
    let job = NewJob { payload: Bytes::from(vec![0; size]), ..stand.job(&queue, LATER) };
    job_is_refused(&stand, job, &size.to_string()).await
}

async fn headers_over_the_limit(stand: Stand) -> Passed {
    let queue = stand.queue();
    let size = Limits::default().headers;
    let headers = Headers::from_iter([("h", "x".repeat(size))]);
    let job = NewJob { headers, ..stand.job(&queue, LATER) };
    job_is_refused(&stand, job, &(size + 1).to_string()).await
}

async fn header_names_that_are_none(stand: Stand) -> Passed {
    for name in ["", "a\0b", "a\nb"] {
        let queue = stand.queue();
        let headers = Headers::from_iter([(name, "x")]);
        job_is_refused(&stand, NewJob { headers, ..stand.job(&queue, LATER) }, "header").await?;
    }
    Ok(())
}

async fn due_before_the_epoch(stand: Stand) -> Passed {
    for millis in [-1, -3_600_000, i64::MIN] {
        let queue = stand.queue();
        let job = stand.job(&queue, Timestamp::from_millis(millis));
        job_is_refused(&stand, job, "1970").await?;
    }
    Ok(())
}

async fn due_beyond_the_horizon(stand: Stand) -> Passed {
    let horizon = Limits::default().horizon;
    let now = stand.now().await?;
    for due in [
        Due::After(horizon + LATER),
        Due::After(Duration::MAX),
        Due::At(now + horizon + LATER),
        // The usual mistake: a time in microseconds.
        Due::At(Timestamp::from_millis(now.as_millis() * 1_000)),
        Due::At(Timestamp::MAX),
    ] {
        let queue = stand.queue();
        job_is_refused(&stand, stand.job(&queue, due), "days ahead").await?;
    }
    Ok(())
}

async fn no_attempts_at_all(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = NewJob { max_attempts: Some(0), ..stand.job(&queue, LATER) };
    job_is_refused(&stand, job, "max_attempts").await
}

async fn bulk_over_the_limit(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.job(&queue, LATER);
    let size = Limits::default().bulk + 1;
    let answer = stand.checked().backend().schedule(vec![job; size]).await;
    refused(answer, &size.to_string())?;
    stand.expect(&queue, Counts::NONE, "after a bulk was refused").await
}

async fn one_bad_job_spoils_the_call(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut jobs: Vec<_> = (0..5).map(|_| stand.job(&queue, LATER)).collect();
    jobs[3].max_attempts = Some(0);
    refused(stand.checked().backend().schedule(jobs).await, "max_attempts")?;
    stand.expect(&queue, Counts::NONE, "input is checked before anything is stored").await
}

async fn largest_input_is_accepted(stand: Stand) -> Passed {
    let limits = Limits::default();
    let queue = stand.queue();
    let headers = Headers::from_iter([("h", "x".repeat(limits.headers - 1))]);
    let job = NewJob {
        headers,
        payload: Bytes::from(vec![7; limits.payload]),
        max_attempts: Some(u32::MAX),
        ..stand.job(&queue, Timestamp::EPOCH)
    };
    stand.checked().create(job.clone()).await?;
    let taken = stand.take_one(&queue).await?.job;
    ensure!(taken.payload == job.payload, "the largest payload comes out as it went in");
    ensure!(taken.headers == job.headers, "the largest headers come out as they went in");
    ensure_eq!(taken.max_attempts, Some(u32::MAX), "the largest limit is kept");
    Ok(())
}

async fn names_that_are_none(_: Stand) -> Passed {
    let long = "x".repeat(256);
    for name in ["", "a\0", "\n", "\u{7f}", "\u{85}", long.as_str()] {
        refused(QueueName::new(name), "queue name")?;
        refused(JobKey::new(name), "key")?;
    }
    refused(QueueName::new("x".repeat(QueueName::MAX_BYTES + 1)), "129")?;
    Ok(())
}

async fn page_of_no_or_too_many_jobs(stand: Stand) -> Passed {
    let queue = stand.queue();
    for limit in [0, 1_001, usize::MAX] {
        let page = BrowseParams { queue: &queue, state: JobState::Scheduled, after: None, limit };
        refused(stand.checked().backend().browse(page).await, "page")?;
    }
    ensure!(
        stand.checked().list(&queue, JobState::Scheduled, 1_000).await?.is_empty(),
        "the largest page is accepted"
    );
    Ok(())
}

async fn move_beyond_the_horizon(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, LATER)).await?;
    for (due, names) in [
        (Due::After(Limits::default().horizon + LATER), "days ahead"),
        (Due::At(Timestamp::from_millis(-1)), "1970"),
    ] {
        let wish = Reschedule { job: JobRef::new(queue.clone(), receipt.id), due };
        refused(stand.checked().backend().reschedule(&[wish]).await, names)?;
    }
    ensure_eq!(stand.stats(&queue).await?.next_due, Some(receipt.due), "nothing was moved");
    Ok(())
}

async fn replay_beyond_the_horizon(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = Due::After(Limits::default().horizon + LATER);
    let replay = Operation::Replay { queue: &queue, jobs: None, due };
    refused(stand.checked().backend().operate(replay).await, "days ahead")
}
