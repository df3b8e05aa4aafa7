//! Cancelling: after `Cancelled` the job never starts.

use dq_core::{
    Cancelled, DeadKind, DeadReason, Due, JobRef, OnConflict, Scheduled, Settled, Verdict,
};

use super::failure::{Failure, Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE, ids};
use super::stand::{LATER, SOON, Stand, key};
use super::trial::topic;

topic! { "cancel":
    cancelled_job_never_starts [Cancel],
    due_job_that_waits_is_cancelled [Cancel],
    by_key [Cancel, Keys],
    running_job_goes_on [Cancel],
    retried_job_is_cancelled [Cancel],
    lapsed_job_is_cancelled [Cancel],
    dead_job_is_not_found [Cancel],
    unknown_job_is_not_found [Cancel],
    finished_job_is_not_found [Cancel],
    job_of_another_queue_is_not_found [Cancel],
    second_cancel_is_not_found [Cancel],
    answers_come_in_the_order_asked [Cancel],
    id_is_free_afterwards [Cancel],
    others_are_left_alone [Cancel],
    races_with_claim [Cancel],
    races_with_itself [Cancel],
}

async fn cancelled_job_never_starts(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, SOON)).await?;
    ensure_eq!(stand.cancel(&queue, receipt.id).await?, Cancelled::Cancelled, "a waiting job");
    stand.expect(&queue, Counts::NONE, "after cancel").await?;
    stand.reach(receipt.due + SOON).await?;
    stand.take_none(&queue, "after `Cancelled` the job never starts").await
}

async fn due_job_that_waits_is_cancelled(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    ensure_eq!(stand.cancel(&queue, id).await?, Cancelled::Cancelled, "due is not yet running");
    stand.take_none(&queue, "after `Cancelled` the job never starts").await
}

async fn by_key(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, LATER, "order-1001", OnConflict::Keep)).await?;
    stand.create(stand.keyed(&queue, LATER, "order-1002", OnConflict::Keep)).await?;
    ensure_eq!(
        stand.cancel(&queue, key("order-1001")).await?,
        Cancelled::Cancelled,
        "a job is cancelled by the caller's own name for it"
    );
    ensure_eq!(
        stand.cancel(&queue, key("order-1001")).await?,
        Cancelled::NotFound,
        "the key has no job any more"
    );
    stand.expect(&queue, Counts::scheduled(1), "the other key's job is left alone").await
}

async fn running_job_goes_on(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(
        stand.cancel(&queue, id).await?,
        Cancelled::AlreadyRunning,
        "a leased job is not taken back"
    );
    stand.expect(&queue, Counts::running(1), "after cancel came too late").await?;
    stand.accept(&taken, Verdict::Done).await
}

async fn retried_job_is_cancelled(stand: Stand) -> Passed {
    for verdict in [
        Verdict::Retry(LATER.into()),
        Verdict::Snooze(LATER.into()),
        Verdict::Release { started: true },
    ] {
        let queue = stand.queue();
        let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, verdict.clone()).await?;
        let answer = stand.cancel(&queue, id).await?;
        ensure_eq!(answer, Cancelled::Cancelled, "a job that waits after {verdict:?}");
        stand.expect(&queue, Counts::NONE, "after cancel").await?;
    }
    Ok(())
}

async fn lapsed_job_is_cancelled(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let lost = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(lost.leased_until).await?;
    ensure_eq!(
        stand.cancel(&queue, id).await?,
        Cancelled::Cancelled,
        "a job whose lease has ended waits, it does not run"
    );
    let late = stand.settle(lost.lease(), Verdict::Retry(Due::NOW)).await?;
    ensure_eq!(late, Settled::Stale, "the old holder cannot bring it back");
    stand.take_none(&queue, "after `Cancelled` the job never starts").await
}

async fn dead_job_is_not_found(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    stand.accept(&taken, Verdict::Dead { reason, failed: true }).await?;
    ensure_eq!(stand.cancel(&queue, id).await?, Cancelled::NotFound, "a dead job will not start");
    if stand.capabilities().dead_letters {
        stand.expect(&queue, Counts::dead(1), "an operator's job is not taken away").await?;
    }
    Ok(())
}

async fn unknown_job_is_not_found(stand: Stand) -> Passed {
    let queue = stand.queue();
    let never = stand.job(&queue, Due::NOW).id;
    ensure_eq!(stand.cancel(&queue, never).await?, Cancelled::NotFound, "in an unknown queue");
    stand.create(stand.job(&queue, LATER)).await?;
    ensure_eq!(stand.cancel(&queue, never).await?, Cancelled::NotFound, "in a known queue");
    stand.expect(&queue, Counts::scheduled(1), "after a cancel of nothing").await
}

async fn finished_job_is_not_found(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Done).await?;
    ensure_eq!(stand.cancel(&queue, id).await?, Cancelled::NotFound, "what is done is done");
    Ok(())
}

async fn job_of_another_queue_is_not_found(stand: Stand) -> Passed {
    let (here, there) = (stand.queue(), stand.queue());
    let id = stand.create(stand.job(&here, LATER)).await?.id;
    stand.create(stand.job(&there, LATER)).await?;
    ensure_eq!(stand.cancel(&there, id).await?, Cancelled::NotFound, "a job lives in one queue");
    stand.expect(&here, Counts::scheduled(1), "after a cancel in another queue").await
}

async fn second_cancel_is_not_found(stand: Stand) -> Passed {
    let queue = stand.queue();
    let id = stand.create(stand.job(&queue, LATER)).await?.id;
    let job = JobRef::new(queue.clone(), id);
    ensure_eq!(
        stand.backend().cancel(&[job.clone(), job.clone()]).await?,
        [Cancelled::Cancelled, Cancelled::NotFound],
        "within one call too a job is cancelled once"
    );
    ensure_eq!(stand.cancel(&queue, id).await?, Cancelled::NotFound, "it is gone");
    Ok(())
}

async fn answers_come_in_the_order_asked(stand: Stand) -> Passed {
    let queue = stand.queue();
    let running = stand.create(stand.job(&queue, Due::NOW)).await?.id;
    stand.take_one(&queue).await?;
    let waiting = stand.create(stand.job(&queue, LATER)).await?.id;
    let unknown = stand.job(&queue, LATER).id;
    let jobs = [unknown, running, waiting, unknown].map(|id| JobRef::new(queue.clone(), id));
    ensure_eq!(
        stand.backend().cancel(&jobs).await?,
        [Cancelled::NotFound, Cancelled::AlreadyRunning, Cancelled::Cancelled, Cancelled::NotFound],
        "answers come in the order asked"
    );
    ensure!(stand.backend().cancel(&[]).await?.is_empty(), "no jobs, no answers");
    Ok(())
}

async fn id_is_free_afterwards(stand: Stand) -> Passed {
    let queue = stand.queue();
    let job = stand.job(&queue, LATER);
    stand.create(job.clone()).await?;
    ensure_eq!(stand.cancel(&queue, job.id).await?, Cancelled::Cancelled, "a waiting job");
    ensure_matches!(stand.put(job).await?, Scheduled::Created(_), "the id is not live any more");
    Ok(())
}

async fn others_are_left_alone(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let mut created = Vec::new();
    for _ in 0..9 {
        created.push(stand.create(stand.job(&queue, now)).await?.id);
    }
    let doomed: Vec<_> =
        created.iter().step_by(2).map(|id| JobRef::new(queue.clone(), *id)).collect();
    let answers = stand.backend().cancel(&doomed).await?;
    ensure!(answers.iter().all(|answer| *answer == Cancelled::Cancelled), "all five waited");
    let mut left = ids(&stand.take(&queue, 10).await?);
    left.sort_unstable();
    let mut wanted: Vec<_> = created.into_iter().skip(1).step_by(2).collect();
    wanted.sort_unstable();
    ensure_eq!(left, wanted, "who was not cancelled runs");
    Ok(())
}

async fn races_with_claim(stand: Stand) -> Passed {
    for _ in 0..60 {
        let queue = stand.queue();
        let id = stand.create(stand.job(&queue, Due::NOW)).await?.id;
        let (caller, runner) = (stand.handle(), stand.handle());
        let (there, here) = (queue.clone(), queue.clone());
        let cancel = tokio::spawn(async move { caller.cancel(&there, id).await });
        let claim = tokio::spawn(async move { runner.take(&here, 1).await });
        let answer = cancel.await.map_err(Failure::new)??;
        let leased = claim.await.map_err(Failure::new)??.len();
        match answer {
            Cancelled::Cancelled => ensure_eq!(leased, 0, "after `Cancelled` it never starts"),
            Cancelled::AlreadyRunning => ensure_eq!(leased, 1, "it runs, as was said"),
            other => return Err(Failure::new(format_args!("one of both wins, not {other:?}"))),
        }
        stand.take_none(&queue, "either it was cancelled or it is leased").await?;
    }
    Ok(())
}

async fn races_with_itself(stand: Stand) -> Passed {
    for _ in 0..20 {
        let queue = stand.queue();
        let id = stand.create(stand.job(&queue, LATER)).await?.id;
        let callers = (0..4).map(|_| {
            let (handle, queue) = (stand.handle(), queue.clone());
            tokio::spawn(async move { handle.cancel(&queue, id).await })
        });
        let mut won = 0;
        for caller in callers.collect::<Vec<_>>() {
            won += usize::from(caller.await.map_err(Failure::new)?? == Cancelled::Cancelled);
        }
        ensure_eq!(won, 1, "of several cancels at once, one takes the job back");
    }
    Ok(())
}
