//! Storing: what is handed in is what is there.

use bytes::Bytes;
use dq_core::{Due, Headers, JobKey, Limits, NewJob, QueueName, Scheduled, Timestamp, Verdict};
use std::time::Duration;

use super::failure::{Failure, Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, ids};
use super::stand::{LATER, SOON, Stand};
use super::trial::topic;

topic! { "schedule":
    what_was_handed_in_comes_out,
    receipt_names_the_job_and_its_due_time,
    delay_counts_from_the_stores_now,
    point_in_time_is_kept_to_the_millisecond,
    past_is_now,
    far_future_is_kept,
    nothing_about_a_pending_job_expires [VirtualTime],
    same_id_is_stored_once,
    same_id_while_running_is_already_running,
    same_id_twice_in_one_call,
    same_id_from_many_tasks_is_stored_once,
    answers_come_in_the_order_asked,
    no_jobs_is_no_error,
    thousands_in_one_call,
    payload_of_a_mebibyte,
    payload_of_any_bytes,
    names_in_any_script,
    names_of_full_length,
    headers_come_out_as_they_went_in,
}

async fn what_was_handed_in_comes_out(stand: Stand) -> Passed {
    let queue = stand.queue();
    let before = stand.now().await?;
    let key = stand.capabilities().keys.then(|| super::stand::key("order-1001"));
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
    let new = NewJob { key, headers, max_attempts: Some(7), ..stand.job(&queue, Due::At(before)) };
    stand.create(new.clone()).await?;
    let after = stand.now().await?;

    let job = stand.take_one(&queue).await?.job;
    ensure_eq!(job.id, new.id, "the id is the producer's");
    ensure_eq!(job.queue, new.queue, "the queue is kept");
    ensure_eq!(job.key, new.key, "the key is kept");
    ensure_eq!(job.due, before, "the due time is kept");
    ensure_eq!(job.payload, new.payload, "the payload is kept");
    ensure_eq!(job.headers, new.headers, "the headers are kept");
    ensure_eq!(job.max_attempts, Some(7), "the job's own limit of attempts is kept");
    ensure!(
        before <= job.created && job.created <= after,
        "`created` is when the store accepted it: {} is not within {before} to {after}",
        job.created
    );
    ensure_eq!(
        (job.attempts, job.deliveries, job.losses),
        (0, 1, 0),
        "a job's first lease is its first delivery, with no attempt failed and no lease lost"
    );
    Ok(())
}

async fn receipt_names_the_job_and_its_due_time(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = stand.now().await? + LATER;
    let job = stand.job(&queue, due);
    let id = job.id;
    let receipt = stand.create(job).await?;
    ensure_eq!((receipt.id, receipt.due), (id, due), "the receipt names job and due time");
    stand.expect(&queue, Counts::scheduled(1), "after schedule").await?;
    ensure_eq!(stand.stats(&queue).await?.next_due, Some(due), "`next_due` is the one job's");
    Ok(())
}

async fn delay_counts_from_the_stores_now(stand: Stand) -> Passed {
    let queue = stand.queue();
    let before = stand.now().await?;
    let due = stand.create(stand.job(&queue, LATER)).await?.due;
    let after = stand.now().await?;
    ensure!(
        before + LATER <= due && due <= after + LATER,
        "a delay counts from the store's now: {due} is not within {before} to {after} plus {LATER:?}"
    );
    let fraction = stand.create(stand.job(&queue, LATER + Duration::from_micros(1))).await?.due;
    ensure!(
        fraction > before + LATER,
        "a fraction of a millisecond rounds up, or the job would be early: {fraction}"
    );
    Ok(())
}

async fn point_in_time_is_kept_to_the_millisecond(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    for ahead in [3_600_001, 3_600_999, 3_601_000, 86_400_123, 31_536_000_007] {
        let at = now + Duration::from_millis(ahead);
        let due = stand.create(stand.job(&queue, at)).await?.due;
        ensure_eq!(due, at, "due times are kept to the millisecond");
    }
    Ok(())
}

async fn past_is_now(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let recent = stand.create(stand.job(&queue, now - SOON)).await?.id;
    let oldest = stand.create(stand.job(&queue, Timestamp::EPOCH)).await?.id;
    let old = stand.create(stand.job(&queue, now - LATER)).await?.id;
    let taken = stand.take(&queue, 10).await?;
    ensure_eq!(ids(&taken), [oldest, old, recent], "the past is due at once, oldest first");
    Ok(())
}

async fn far_future_is_kept(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = stand.now().await? + (Limits::default().horizon - LATER);
    ensure_eq!(
        stand.create(stand.job(&queue, due)).await?.due,
        due,
        "every due time up to the horizon is kept"
    );
    stand.take_none(&queue, "the job is due in 100 years").await
}

async fn nothing_about_a_pending_job_expires(stand: Stand) -> Passed {
    let queue = stand.queue();
    const DAY: Duration = Duration::from_secs(86_400);
    let job = stand.job(&queue, DAY * 1_000);
    let (id, payload) = (job.id, job.payload.clone());
    stand.create(job).await?;
    for _ in 0..999 {
        stand.pass(DAY).await?;
    }
    stand.take_none(&queue, "it is due tomorrow").await?;
    stand.pass(DAY * 500).await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!((taken.job.id, taken.job.payload), (id, payload), "payloads have no time to live");
    Ok(())
}

async fn same_id_is_stored_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.job(&queue, Due::NOW);
    let again =
        NewJob { payload: Bytes::from_static(b"other"), due: LATER.into(), ..first.clone() };
    let receipt = stand.create(first.clone()).await?;
    ensure_eq!(
        stand.put(again).await?,
        Scheduled::Kept(receipt),
        "a job whose id is live already changes nothing, and the receipt names what is there"
    );
    stand.expect(&queue, Counts::ready(1), "after the same id came twice").await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(taken.job.payload, first.payload, "the first payload stays");
    Ok(())
}

async fn same_id_while_running_is_already_running(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.job(&queue, Due::NOW);
    let receipt = stand.create(job.clone()).await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(
        stand.put(job).await?,
        Scheduled::AlreadyRunning(receipt),
        "a job whose id is leased changes nothing"
    );
    stand.accept(&taken, Verdict::Done).await?;
    stand.expect(&queue, Counts::NONE, "after done").await
}

async fn same_id_twice_in_one_call(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.job(&queue, LATER);
    let answers = stand.put_all(vec![job.clone(), job]).await?;
    ensure_matches!(
        answers[..],
        [Scheduled::Created(first), Scheduled::Kept(second)] if first == second,
        "the second of two equal ids in one call finds the first"
    );
    stand.expect(&queue, Counts::scheduled(1), "after one call with one id twice").await
}

async fn same_id_from_many_tasks_is_stored_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.job(&queue, LATER);
    let tasks = (0..8).map(|_| {
        let (handle, job) = (stand.handle(), job.clone());
        tokio::spawn(async move { handle.put(job).await })
    });
    let mut created = 0;
    for answer in futures_util::future::join_all(tasks).await {
        match answer.map_err(Failure::new)?? {
            Scheduled::Created(_) => created += 1,
            answer => ensure_matches!(answer, Scheduled::Kept(_), "the others find the first"),
        }
    }
    ensure_eq!(created, 1, "one of several equal calls at once stores the job");
    stand.expect(&queue, Counts::scheduled(1), "after equal calls at once").await
}

async fn answers_come_in_the_order_asked(stand: Stand) -> Passed {
    let queues = [stand.queue(), stand.queue(), stand.queue()];
    let now = stand.now().await?;
    let jobs: Vec<NewJob> = (0..60_u64)
        .map(|n| {
            let ahead = LATER + Duration::from_millis(n * 37 % 60);
            stand.job(&queues[usize::try_from(n).unwrap_or(0) % 3], now + ahead)
        })
        .collect();
    let answers = stand.put_all(jobs.clone()).await?;
    for (job, answer) in jobs.iter().zip(answers) {
        ensure_eq!(answer.id(), job.id, "answers come in the order asked");
        ensure_eq!(Due::At(answer.due()), job.due, "answers come in the order asked");
    }
    for queue in &queues {
        stand.expect(queue, Counts::scheduled(20), "after one call about three queues").await?;
    }
    Ok(())
}

async fn no_jobs_is_no_error(stand: Stand) -> Passed {
    ensure!(stand.put_all(Vec::new()).await?.is_empty(), "no jobs, no answers");
    Ok(())
}

async fn thousands_in_one_call(stand: Stand) -> Passed {
    let queue = stand.queue();
    let jobs: Vec<NewJob> = (0..5_000).map(|_| stand.job(&queue, LATER)).collect();
    let wanted: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let answers = stand.put_all(jobs).await?;
    let found: Vec<_> = answers.iter().map(Scheduled::id).collect();
    ensure!(found == wanted, "every job of a long call is answered, in order");
    ensure!(
        answers.iter().all(|answer| matches!(answer, Scheduled::Created(_))),
        "every job of a long call is `Created`"
    );
    stand.expect(&queue, Counts::scheduled(5_000), "after a long call").await
}

async fn payload_of_a_mebibyte(stand: Stand) -> Passed {
    let payload: Vec<u8> = (0..1024 * 1024_u32).map(|n| (n.wrapping_mul(31) >> 7) as u8).collect();
    payload_comes_out(&stand, payload.into()).await
}

async fn payload_of_any_bytes(stand: Stand) -> Passed {
    payload_comes_out(&stand, Bytes::new()).await?;
    payload_comes_out(&stand, (0..=255).collect::<Vec<u8>>().into()).await?;
    payload_comes_out(&stand, Bytes::from_static(b"\0\xff\xfe{not json")).await
}

async fn payload_comes_out(stand: &Stand, payload: Bytes) -> Passed {
    let queue = stand.queue();
    stand.create(NewJob { payload: payload.clone(), ..stand.job(&queue, Due::NOW) }).await?;
    let taken = stand.take_one(&queue).await?;
    ensure!(
        taken.job.payload == payload,
        "a payload of {} bytes comes out byte by byte; {} came",
        payload.len(),
        taken.job.payload.len()
    );
    Ok(())
}

async fn names_in_any_script(stand: Stand) -> Passed {
    let names =
        ["订单-超时", "напоминание", "🚚 ✉", "q{x}y", "a'b\"c`d", "50%_\\*?[x]", "a:b/c.d", " "];
    for name in names {
        let queue = stand.queue_named(name);
        let mut job = stand.job(&queue, Due::NOW);
        if stand.capabilities().keys {
            job.key = Some(super::stand::key(name));
        }
        stand.create(job.clone()).await?;
        stand.expect(&queue, Counts::ready(1), "whatever the script of the names").await?;
        let taken = stand.take_one(&queue).await?;
        ensure_eq!(taken.job.key, job.key, "keys of any script are kept");
        stand.accept(&taken, Verdict::Done).await?;
    }
    Ok(())
}

async fn names_of_full_length(stand: Stand) -> Passed {
    let start = stand.queue();
    let fill = QueueName::MAX_BYTES - start.as_str().len();
    let shared = format!("{}{}", start.as_str(), "x".repeat(fill - 1));
    // They differ in the last byte only, so a cut name would mix them up.
    for (end, other) in [("y", "z"), ("z", "y")] {
        let queue = QueueName::new(format!("{shared}{end}"))?;
        let mut job = stand.job(&queue, Due::NOW);
        if stand.capabilities().keys {
            job.key = Some(JobKey::new("k".repeat(JobKey::MAX_BYTES - 1) + other)?);
        }
        stand.create(job.clone()).await?;
        let taken = stand.take_one(&queue).await?;
        ensure_eq!((taken.job.id, taken.job.key), (job.id, job.key), "long names are kept whole");
    }
    Ok(())
}

async fn headers_come_out_as_they_went_in(stand: Stand) -> Passed {
    let queue = stand.queue();
    let headers = Headers::from_iter([
        (Headers::TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("empty", ""),
        ("Case", "1"),
        ("case", "2"),
        ("заголовок", "多\nлиний \"'\\"),
    ]);
    stand.create(NewJob { headers: headers.clone(), ..stand.job(&queue, Due::NOW) }).await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(taken.job.headers, headers, "headers come out as they went in");
    Ok(())
}
