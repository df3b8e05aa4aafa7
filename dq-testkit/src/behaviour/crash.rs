//! Crashes: what was answered with `Ok` is there when the store is opened again.

use dq_core::{
    DeadKind, DeadReason, Due, Headers, JobState, NewJob, OnConflict, Operation, Scheduled,
    Settled, Verdict,
};

use super::failure::{Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE, ids};
use super::stand::{LATER, SOON, Stand};
use super::trial::topic;

topic! { "crash":
    jobs_survive_as_they_were [Durable],
    each_state_survives [Durable],
    lease_outlives_its_holder [Durable],
    settlements_survive [Durable],
    backoff_survives [Durable],
    keys_survive [Durable, Keys],
    cancel_survives [Durable, Cancel],
    dead_reasons_survive [Durable, Browse, DeadLetters],
    pause_survives [Durable, Pause],
    totals_survive [Durable, Totals],
    order_survives [Durable, Fifo],
    due_while_the_store_was_closed [Durable],
    repeated_call_after_a_crash_stores_once [Durable],
    close_loses_nothing [Durable],
}

async fn jobs_survive_as_they_were(stand: Stand) -> Passed {
    let queue = stand.queue();
    let key = stand.capabilities().keys.then(|| super::stand::key("k"));
    let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "application/json")]);
    let due = stand.now().await? - LATER;
    let new = NewJob { key, headers, max_attempts: Some(3), ..stand.job(&queue, due) };
    stand.create(new.clone()).await?;
    let stand = stand.crash().await?;
    let job = stand.take_one(&queue).await?.job;
    ensure_eq!((job.id, job.due, job.key), (new.id, due, new.key), "id, due time and key");
    ensure_eq!((job.payload, job.headers), (new.payload, new.headers), "payload and headers");
    ensure_eq!(job.max_attempts, Some(3), "the job's own limit of attempts");
    Ok(())
}

async fn each_state_survives(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..6).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    for leased in stand.take(&queue, 1).await? {
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        stand.accept(&leased, Verdict::Dead { reason, failed: true }).await?;
    }
    stand.take(&queue, 2).await?;
    stand.put_all((0..4).map(|_| stand.job(&queue, LATER)).collect()).await?;
    let before = stand.stats(&queue).await?;
    let stand = stand.crash().await?;
    ensure_eq!(stand.stats(&queue).await?, before, "each job is in the state that it was in");
    Ok(())
}

async fn lease_outlives_its_holder(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let lost = stand.take_one_for(&queue, SHORT_LEASE).await?;
    let stand = stand.crash().await?;
    if stand.now().await? < lost.leased_until {
        let claimed = stand.take(&queue, 1).await?;
        let lapsed = stand.now().await? >= lost.leased_until;
        ensure!(claimed.is_empty() || lapsed, "a lease lasts, though its holder is gone");
        if !claimed.is_empty() {
            return Ok(());
        }
    }
    stand.reach(lost.leased_until).await?;
    let again = stand.take_one(&queue).await?;
    ensure_eq!(
        (again.job.deliveries, again.job.losses, again.job.attempts),
        (2, 1, 0),
        "a crash between claim and settlement is a delivery, not a failed attempt"
    );
    ensure_eq!(
        stand.settle(lost.lease(), Verdict::Done).await?,
        Settled::Stale,
        "the lease of before the crash is stale"
    );
    stand.take_none(&queue, "it is redelivered once").await
}

async fn settlements_survive(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..3).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let taken = stand.take(&queue, 3).await?;
    for (leased, verdict) in
        taken.iter().zip([Verdict::Done, Verdict::Skip, Verdict::Snooze(LATER.into())])
    {
        stand.accept(leased, verdict).await?;
    }
    let stand = stand.crash().await?;
    stand.expect(&queue, Counts::scheduled(1), "what was settled stays settled").await?;
    stand.take_none(&queue, "what was settled does not come again").await
}

async fn backoff_survives(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    for _ in 0..2 {
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, Verdict::Retry(Due::NOW)).await?;
    }
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Retry(SOON.into())).await?;
    let due = stand.stats(&queue).await?.next_due;
    let stand = stand.crash().await?;
    ensure_eq!(stand.stats(&queue).await?.next_due, due, "the time of the retry is kept");
    stand.reach(due.unwrap_or_default()).await?;
    let job = stand.take_one(&queue).await?.job;
    ensure_eq!((job.id, job.attempts, job.deliveries), (id, 3, 4), "the counts are kept");
    Ok(())
}

async fn keys_survive(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let stand = stand.crash().await?;
    let again = stand.put(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(again, Scheduled::Kept(first), "the key is still live");
    ensure_matches!(
        stand.put(stand.keyed(&queue, LATER, "k", OnConflict::Replace)).await?,
        Scheduled::Replaced(_),
        "and can be taken over"
    );
    Ok(())
}

async fn cancel_survives(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, SOON)).await?;
    let answer = stand.cancel(&queue, receipt.id).await?;
    ensure_eq!(answer, dq_core::Cancelled::Cancelled, "a waiting job");
    let stand = stand.crash().await?;
    stand.reach(receipt.due).await?;
    stand.take_none(&queue, "after `Cancelled` the job never starts, crash or no crash").await
}

async fn dead_reasons_survive(stand: Stand) -> Passed {
    let queue = stand.queue();
    let new = stand.job(&queue, Due::NOW);
    stand.create(new.clone()).await?;
    let taken = stand.take_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Undecodable, "expected a number\nat line 1");
    stand.accept(&taken, Verdict::Dead { reason: reason.clone(), failed: true }).await?;
    let before = stand.view(&queue, new.id).await?;
    let stand = stand.crash().await?;
    let after = stand.view(&queue, new.id).await?;
    ensure_eq!(after, before, "a dead job is kept as it was");
    ensure_eq!(after.state, JobState::Dead, "it is dead");
    ensure_eq!(after.dead.map(|(why, _)| why), Some(reason), "the reason is kept");
    Ok(())
}

async fn pause_survives(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    stand.operate(Operation::Pause { queue: &queue }).await?;
    let stand = stand.crash().await?;
    ensure!(stand.stats(&queue).await?.paused, "an operator's pause holds until undone");
    stand.take_none(&queue, "the queue is paused").await?;
    stand.operate(Operation::Resume { queue: &queue }).await?;
    let stand = stand.crash().await?;
    stand.take_one(&queue).await?;
    Ok(())
}

async fn totals_survive(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..5).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    for (leased, verdict) in stand.take(&queue, 2).await?.iter().zip([Verdict::Done, Verdict::Skip])
    {
        stand.accept(leased, verdict).await?;
    }
    let before = stand.stats(&queue).await?.totals;
    let stand = stand.crash().await?;
    ensure_eq!(stand.stats(&queue).await?.totals, before, "totals are of the queue's life");
    Ok(())
}

async fn order_survives(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let mut wanted = Vec::new();
    let mut stand = stand;
    for _ in 0..3 {
        let mut jobs: Vec<_> = (0..4).map(|_| stand.job(&queue, now)).collect();
        jobs.reverse();
        wanted.extend(jobs.iter().map(|job| job.id));
        stand.put_all(jobs).await?;
        stand = stand.crash().await?;
    }
    let found = ids(&stand.take(&queue, 100).await?);
    ensure_eq!(found, wanted, "equal due times fire in order of insertion over crashes too");
    Ok(())
}

async fn due_while_the_store_was_closed(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, SOON)).await?;
    stand.backend().close().await?;
    stand.reach_with_the_store_closed(receipt.due).await;
    let stand = stand.crash().await?;
    // A server's clock may be behind this process's.
    stand.reach(receipt.due).await?;
    ensure_eq!(
        stand.take_one(&queue).await?.job.id,
        receipt.id,
        "what became due while nobody was there comes at once"
    );
    Ok(())
}

async fn repeated_call_after_a_crash_stores_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    let jobs: Vec<_> = (0..10).map(|_| stand.job(&queue, LATER)).collect();
    stand.put_all(jobs.clone()).await?;
    let stand = stand.crash().await?;
    // The producer never saw the answer.
    let answers = stand.put_all(jobs).await?;
    ensure!(
        answers.iter().all(|answer| matches!(answer, Scheduled::Kept(_))),
        "a call repeated with the same ids changes nothing: {answers:?}"
    );
    stand.expect(&queue, Counts::scheduled(10), "after a repeated call").await
}

async fn close_loses_nothing(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.put_all((0..10).map(|_| stand.job(&queue, Due::NOW)).collect()).await?;
    let running = stand.take(&queue, 3).await?;
    stand.backend().close().await?;
    let stand = stand.crash().await?;
    stand.expect(&queue, Counts { ready: 7, ..Counts::running(3) }, "after a close").await?;
    stand.finish_all(&running).await
}
