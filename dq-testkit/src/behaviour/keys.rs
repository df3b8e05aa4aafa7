//! Keys: at most one live job for each, and an answer that says what happened.

use std::time::Duration;

use dq_core::{Cancelled, DeadKind, DeadReason, Due, NewJob, OnConflict, Scheduled, Verdict};

use super::failure::{Failure, Passed, ensure, ensure_eq, ensure_matches};
use super::handle::{Counts, SHORT_LEASE};
use super::stand::{LATER, SOON, Stand, key};
use super::trial::topic;

topic! { "keys":
    keep_leaves_the_first [Keys],
    replace_puts_the_new_in_its_place [Keys],
    replace_starts_the_delay_anew [Keys],
    replaced_job_is_gone [Keys, Cancel],
    earliest_keeps_whichever_is_first [Keys],
    latest_keeps_whichever_is_last [Keys],
    running_job_is_never_touched [Keys],
    waiting_for_a_slot_is_live [Keys],
    key_is_held_through_retry_and_snooze [Keys],
    key_is_free_after_the_end [Keys],
    key_is_free_after_cancel [Keys, Cancel],
    key_is_free_after_death [Keys],
    lapsed_job_can_be_replaced [Keys],
    repeated_replace_is_kept [Keys],
    same_key_twice_in_one_call [Keys],
    one_key_in_two_queues [Keys],
    keys_differ_in_every_byte [Keys],
    one_key_from_many_tasks_is_stored_once [Keys],
    replace_races_with_claim [Keys],
}

async fn keep_leaves_the_first(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.keyed(&queue, SOON, "k", OnConflict::default());
    let receipt = stand.create(first.clone()).await?;
    let second = stand.keyed(&queue, Due::NOW, "k", OnConflict::default());
    ensure_eq!(
        stand.put(second).await?,
        Scheduled::Kept(receipt),
        "by default the first stays, and the receipt names it"
    );
    stand.reach(receipt.due).await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(taken.job.payload, first.payload, "after `Kept` the first payload runs");
    Ok(())
}

async fn replace_puts_the_new_in_its_place(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let new = stand.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    ensure_matches!(
        stand.put(new.clone()).await?,
        Scheduled::Replaced(receipt) if receipt.id == new.id,
        "`Replace` puts the new job in the place of the old, and the receipt names the new one"
    );
    stand.expect(&queue, Counts::ready(1), "after `Replaced`").await?;
    let taken = stand.take_one(&queue).await?;
    ensure_eq!(
        (taken.job.id, taken.job.payload.clone()),
        (new.id, new.payload),
        "after `Replaced` the old payload never starts"
    );
    Ok(())
}

async fn replace_starts_the_delay_anew(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.create(stand.keyed(&queue, SOON, "k", OnConflict::Replace)).await?;
    let last = stand.put(stand.keyed(&queue, LATER, "k", OnConflict::Replace)).await?;
    ensure_matches!(last, Scheduled::Replaced(_), "a waiting job is replaced");
    stand.reach(first.due).await?;
    stand.take_none(&queue, "the delay starts anew and the old time is void").await?;
    stand.expect(&queue, Counts::scheduled(1), "while the new delay runs").await
}

async fn replaced_job_is_gone(stand: Stand) -> Passed {
    let queue = stand.queue();
    let old = stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let new = stand.put(stand.keyed(&queue, LATER, "k", OnConflict::Replace)).await?;
    ensure_eq!(
        stand.cancel(&queue, old.id).await?,
        Cancelled::NotFound,
        "the replaced job is not in the store any more"
    );
    ensure_eq!(stand.cancel(&queue, key("k")).await?, Cancelled::Cancelled, "the key's job is");
    ensure_eq!(
        stand.cancel(&queue, new.id()).await?,
        Cancelled::NotFound,
        "it was the new one that had the key"
    );
    stand.expect(&queue, Counts::NONE, "after replace and cancel").await
}

async fn earliest_keeps_whichever_is_first(stand: Stand) -> Passed {
    whichever(&stand, OnConflict::Earliest, [1, 2]).await
}

async fn latest_keeps_whichever_is_last(stand: Stand) -> Passed {
    whichever(&stand, OnConflict::Latest, [2, 1]).await
}

/// `winner` and `loser` are hours ahead by the policy's measure.
async fn whichever(stand: &Stand, policy: OnConflict, [winner, loser]: [u32; 2]) -> Passed {
    let now = stand.now().await?;
    let at = |hours: u32| now + LATER * hours;

    let queue = stand.queue();
    let present = stand.create(stand.keyed(&queue, at(winner), "k", policy)).await?;
    ensure_eq!(
        stand.put(stand.keyed(&queue, at(loser), "k", policy)).await?,
        Scheduled::Kept(present),
        "{policy:?}: the present one stays if it wins"
    );
    ensure_eq!(
        stand.put(stand.keyed(&queue, at(winner), "k", policy)).await?,
        Scheduled::Kept(present),
        "{policy:?}: the present one stays if the times are equal"
    );

    let queue = stand.queue();
    stand.create(stand.keyed(&queue, at(loser), "k", policy)).await?;
    let new = stand.keyed(&queue, at(winner), "k", policy);
    ensure_matches!(
        stand.put(new.clone()).await?,
        Scheduled::Replaced(receipt) if receipt.id == new.id && receipt.due == at(winner),
        "{policy:?}: the new one takes the place if it wins"
    );
    stand.expect(&queue, Counts::scheduled(1), "after one took the other's place").await?;
    ensure_eq!(
        stand.stats(&queue).await?.next_due,
        Some(at(winner)),
        "{policy:?}: the queue waits for the winner"
    );
    Ok(())
}

async fn running_job_is_never_touched(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep);
    let receipt = stand.create(first.clone()).await?;
    let taken = stand.take_one(&queue).await?;
    for policy in [OnConflict::Keep, OnConflict::Replace, OnConflict::Earliest, OnConflict::Latest]
    {
        for due in [Due::At(dq_core::Timestamp::EPOCH), Due::After(LATER)] {
            ensure_eq!(
                stand.put(stand.keyed(&queue, due, "k", policy)).await?,
                Scheduled::AlreadyRunning(receipt),
                "{policy:?}: a running job is never touched, and the new one is not stored"
            );
        }
    }
    stand.expect(&queue, Counts::running(1), "after four refused policies").await?;
    stand.accept(&taken, Verdict::Done).await?;
    stand.expect(&queue, Counts::NONE, "after the running one is done").await
}

async fn waiting_for_a_slot_is_live(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.keyed(&queue, SOON, "k", OnConflict::Keep)).await?;
    stand.reach(receipt.due).await?;
    stand.expect(&queue, Counts::ready(1), "when the due time has come").await?;
    ensure_eq!(
        stand.put(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?,
        Scheduled::Kept(receipt),
        "a job that is due and waits for a slot still holds its key"
    );
    ensure_matches!(
        stand.put(stand.keyed(&queue, LATER, "k", OnConflict::Replace)).await?,
        Scheduled::Replaced(_),
        "a job that is due and waits for a slot can be replaced"
    );
    stand.take_none(&queue, "the replacement is due in an hour").await
}

async fn key_is_held_through_retry_and_snooze(stand: Stand) -> Passed {
    for verdict in [Verdict::Retry(Due::NOW), Verdict::Snooze(Due::NOW)] {
        let queue = stand.queue();
        stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, verdict.clone()).await?;
        ensure_matches!(
            stand.put(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?,
            Scheduled::Kept(receipt) if receipt.id == taken.job.id,
            "a job holds its key through {verdict:?}"
        );
    }
    Ok(())
}

async fn key_is_free_after_the_end(stand: Stand) -> Passed {
    for verdict in [Verdict::Done, Verdict::Skip] {
        let queue = stand.queue();
        stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
        let taken = stand.take_one(&queue).await?;
        stand.accept(&taken, verdict).await?;
        stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    }
    Ok(())
}

async fn key_is_free_after_cancel(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    ensure_eq!(stand.cancel(&queue, key("k")).await?, Cancelled::Cancelled, "a waiting job");
    stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    Ok(())
}

async fn key_is_free_after_death(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let taken = stand.take_one(&queue).await?;
    let reason = DeadReason::new(DeadKind::Rejected, "no");
    stand.accept(&taken, Verdict::Dead { reason, failed: true }).await?;
    let live = stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    ensure_eq!(stand.take_one(&queue).await?.job.id, live.id, "a dead job does not hold its key");
    Ok(())
}

async fn lapsed_job_can_be_replaced(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let old = stand.take_one_for(&queue, SHORT_LEASE).await?;
    stand.reach(old.leased_until).await?;
    let new = stand.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    ensure_matches!(
        stand.put(new.clone()).await?,
        Scheduled::Replaced(_),
        "a job whose lease has ended is due again, not running"
    );
    ensure_eq!(
        stand.settle(old.lease(), Verdict::Done).await?,
        dq_core::Settled::Stale,
        "the replaced job's old lease is worthless"
    );
    ensure_eq!(stand.take_one(&queue).await?.job.id, new.id, "the new job runs");
    Ok(())
}

async fn repeated_replace_is_kept(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.keyed(&queue, LATER, "k", OnConflict::Keep)).await?;
    let new = stand.keyed(&queue, LATER, "k", OnConflict::Replace);
    ensure_matches!(stand.put(new.clone()).await?, Scheduled::Replaced(_), "`Replace` replaces");
    ensure_matches!(
        stand.put(new.clone()).await?,
        Scheduled::Kept(receipt) if receipt.id == new.id,
        "a call repeated because its answer was lost changes nothing"
    );
    stand.expect(&queue, Counts::scheduled(1), "after a repeated replace").await
}

async fn same_key_twice_in_one_call(stand: Stand) -> Passed {
    let queue = stand.queue();
    let jobs: Vec<NewJob> = [OnConflict::Keep, OnConflict::Keep, OnConflict::Replace]
        .map(|policy| stand.keyed(&queue, LATER, "k", policy))
        .into();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let answers = stand.put_all(jobs).await?;
    ensure_matches!(
        answers[..],
        [Scheduled::Created(first), Scheduled::Kept(kept), Scheduled::Replaced(last)]
            if first.id == ids[0] && kept.id == ids[0] && last.id == ids[2],
        "within one call each job finds those before it"
    );
    stand.expect(&queue, Counts::scheduled(1), "after one call with one key thrice").await
}

async fn one_key_in_two_queues(stand: Stand) -> Passed {
    let (here, there) = (stand.queue(), stand.queue());
    stand.create(stand.keyed(&here, LATER, "k", OnConflict::Keep)).await?;
    stand.create(stand.keyed(&there, Due::NOW, "k", OnConflict::Replace)).await?;
    stand.expect(&here, Counts::scheduled(1), "whatever the key does elsewhere").await?;
    stand.expect(&there, Counts::ready(1), "whatever the key does elsewhere").await
}

async fn keys_differ_in_every_byte(stand: Stand) -> Passed {
    let queue = stand.queue();
    // Case, trailing blanks, composed and decomposed letters, characters of patterns.
    let keys = ["a", "A", "a ", " a", "é", "e\u{301}", "a%", "a_", "a*", "1", "01", "1.0"];
    for key in keys {
        stand.create(stand.keyed(&queue, LATER, key, OnConflict::Replace)).await?;
    }
    let count = u64::try_from(keys.len()).unwrap_or(0);
    stand.expect(&queue, Counts::scheduled(count), "under its own key").await
}

async fn one_key_from_many_tasks_is_stored_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    let tasks = (0..8).map(|_| {
        let handle = stand.handle();
        let job = stand.keyed(&queue, LATER, "k", OnConflict::Keep);
        tokio::spawn(async move { handle.put(job).await })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut created, mut kept) = (Vec::new(), Vec::new());
    for answer in futures_util::future::join_all(tasks).await {
        match answer.map_err(Failure::new)?? {
            Scheduled::Created(receipt) => created.push(receipt),
            Scheduled::Kept(receipt) => kept.push(receipt),
            other => return Err(Failure::new(format_args!("nothing to replace: {other:?}"))),
        }
    }
    ensure_eq!(created.len(), 1, "of several jobs with one key at once, one is stored");
    ensure!(
        kept.iter().all(|receipt| *receipt == created[0]),
        "the others' receipts name the one that was stored"
    );
    stand.expect(&queue, Counts::scheduled(1), "after one key came from many tasks").await
}

async fn replace_races_with_claim(stand: Stand) -> Passed {
    for _ in 0..40 {
        let queue = stand.queue();
        let old = stand.create(stand.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
        let new = stand.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
        let new_id = new.id;
        let (producer, runner) = (stand.handle(), stand.handle());
        let wanted = queue.clone();
        let replace = tokio::spawn(async move { producer.put(new).await });
        let claim = tokio::spawn(async move { runner.take(&wanted, 10).await });
        let answer = replace.await.map_err(Failure::new)??;
        let taken = super::handle::ids(&claim.await.map_err(Failure::new)??);
        match answer {
            Scheduled::Replaced(_) => ensure!(
                taken.is_empty() || taken == [new_id],
                "after `Replaced` the old job never starts; leased were {taken:?}"
            ),
            Scheduled::AlreadyRunning(_) => {
                ensure_eq!(taken, [old.id], "`AlreadyRunning` means that the old one was leased");
            }
            other => return Err(Failure::new(format_args!("the key was live: {other:?}"))),
        }
    }
    // Debounce, the usual reason to replace, must not wear anything out.
    let queue = stand.queue();
    for n in 0..50 {
        let due = LATER + Duration::from_millis(n);
        let _ = stand.put(stand.keyed(&queue, due, "k", OnConflict::Replace)).await?;
    }
    stand.expect(&queue, Counts::scheduled(1), "after fifty replacements").await
}
