//! Keys: each has at most one live job per queue, and the answer names it.

use dq_core::{Due, OnConflict, Receipt, Scheduled, Timestamp, Verdict};

use super::client::{Counts, dead, race_with_claim};
use super::failure::{Failure, TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, Limit, SOON, TrialStore};
use super::trial::topic;

topic! { "keys":
    keep_leaves_the_existing_job [keys],
    replace_stores_the_new_job_instead [keys],
    running_job_is_not_replaced [keys],
    key_is_held_until_the_job_ends_or_dies [keys],
    repeated_call_of_jobs_with_one_key [keys],
    keys_are_compared_byte_by_byte [keys],
    concurrent_calls_with_one_key_store_one_job [keys],
    replace_races_with_claim [keys],
}

async fn keep_leaves_the_existing_job(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.keyed(&queue, SOON, "k", OnConflict::default());
    let receipt = store.create(first.clone()).await?;
    let second = store.keyed(&queue, Due::NOW, "k", OnConflict::default());
    ensure_eq!(
        store.schedule(second).await?,
        Scheduled::Kept(receipt),
        "the default policy keeps the first job, and the receipt is that of the first"
    );
    store.wait_until(receipt.due).await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(leased.job.payload, first.payload, "after `Kept` the first payload runs");
    Ok(())
}

async fn replace_stores_the_new_job_instead(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
    let new = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
    ensure_matches!(
        store.schedule(new.clone()).await?,
        Scheduled::Replaced(receipt) if receipt.id == new.id,
        "`Replace` stores the new job, and the receipt is that of the new one"
    );
    store.expect_counts(&queue, Counts::ready(1), "after `Replaced`").await?;
    let leased = store.lease_one(&queue).await?;
    ensure_eq!(
        (leased.job.id, leased.job.payload.clone()),
        (new.id, new.payload),
        "after `Replaced` the old payload never starts"
    );
    Ok(())
}

async fn running_job_is_not_replaced(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let first = store.keyed(&queue, Due::NOW, "k", OnConflict::Keep);
    let receipt = store.create(first).await?;
    let leased = store.lease_one(&queue).await?;
    for (policy, due) in [
        (OnConflict::Keep, Due::NOW),
        (OnConflict::Replace, LATER.into()),
        (OnConflict::Earliest, Timestamp::EPOCH.into()),
        (OnConflict::Latest, LATER.into()),
    ] {
        ensure_eq!(
            store.schedule(store.keyed(&queue, due, "k", policy)).await?,
            Scheduled::AlreadyRunning(receipt),
            "{policy:?}: a running job is kept, and the new one is not stored"
        );
    }
    store.settle_accepted(&leased, Verdict::Done).await?;
    store.expect_counts(&queue, Counts::NONE, "after the running job is done").await
}

async fn key_is_held_until_the_job_ends_or_dies(store: TrialStore) -> TrialResult {
    let holding = store.verdicts_to_run_again(LATER).into_iter().map(|verdict| (verdict, true));
    let freeing = [Verdict::Done, Verdict::skip("a reason"), dead("no")];
    for (verdict, is_held) in holding.chain(freeing.map(|verdict| (verdict, false))) {
        let queue = store.queue();
        let keyed = || store.keyed(&queue, Due::NOW, "k", OnConflict::Keep);
        let leased = store.start_job(keyed()).await?;
        store.settle_accepted(&leased, verdict.clone()).await?;
        let new = keyed();
        let wanted = if is_held { leased.job.id } else { new.id };
        let answer = store.schedule(new).await?;
        ensure_eq!(
            (answer.is_stored(), answer.id()),
            (!is_held, wanted),
            "who holds the key after {verdict:?}: {answer:?}"
        );
    }
    Ok(())
}

async fn repeated_call_of_jobs_with_one_key(store: TrialStore) -> TrialResult {
    let has_history = store.capabilities().history;
    let queues = [(store.queue_with(Limit::Off), false), (store.queue(), has_history)];
    for (queue, keeps_history) in queues {
        let jobs = [0, 1].map(|_| store.keyed(&queue, LATER, "k", OnConflict::Replace));
        let ids = [jobs[0].id, jobs[1].id];
        store.schedule_all(jobs.to_vec()).await?;
        let answers = store.schedule_all(jobs.to_vec()).await?;
        // With a history, the replaced job has ended.
        let as_expected = match answers[..] {
            [Scheduled::Ended(_), Scheduled::Created(_)] => keeps_history,
            [Scheduled::Replaced(_), Scheduled::Replaced(_)] => !keeps_history,
            _ => false,
        };
        let found: Vec<_> = answers.iter().map(Scheduled::id).collect();
        ensure!(
            as_expected && found == ids,
            "the repeated call, history {keeps_history}: {answers:?}"
        );
        store.expect_counts(&queue, Counts::scheduled(1), "after the repeated call").await?;
    }
    Ok(())
}

async fn keys_are_compared_byte_by_byte(store: TrialStore) -> TrialResult {
    // Case, blanks, composed and decomposed letters, pattern characters.
    let keys = ["a", "A", "a ", " a", "é", "e\u{301}", "a%", "a_", "a*", "1", "01", "1.0"];
    let queues = [store.queue(), store.queue()];
    for queue in &queues {
        for key in keys {
            store.create(store.keyed(queue, LATER, key, OnConflict::Replace)).await?;
        }
    }
    let count = u64::try_from(keys.len()).map_err(Failure::new)?;
    for queue in &queues {
        store.expect_counts(queue, Counts::scheduled(count), "with different keys").await?;
    }
    Ok(())
}

async fn concurrent_calls_with_one_key_store_one_job(store: TrialStore) -> TrialResult {
    let clients = store.two_clients().await?;
    let queue = store.queue();
    let tasks = (0..8).map(|n: usize| {
        let client = clients[n % 2].clone();
        let job = store.keyed(&queue, LATER, "k", OnConflict::Keep);
        tokio::spawn(async move { client.schedule(job).await })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut created, mut kept) = (Vec::new(), Vec::new());
    for answer in futures_util::future::join_all(tasks).await {
        match answer.map_err(Failure::new)?? {
            Scheduled::Created(receipt) => created.push(receipt),
            Scheduled::Kept(receipt) => kept.push(receipt),
            other => return Err(Failure::new(format_args!("`Keep` is not answered {other:?}"))),
        }
    }
    ensure_eq!(created.len(), 1, "one of several concurrent jobs with one key is stored");
    let is_stored = |receipt: &Receipt| *receipt == created[0];
    ensure!(kept.iter().all(is_stored), "the other receipts are those of the stored job");
    store.expect_counts(&queue, Counts::scheduled(1), "after concurrent calls with one key").await
}

async fn replace_races_with_claim(store: TrialStore) -> TrialResult {
    let [producer, runner] = store.two_clients().await?;
    for _ in 0..20 {
        let queue = store.queue();
        let old = store.create(store.keyed(&queue, Due::NOW, "k", OnConflict::Keep)).await?;
        let new = store.keyed(&queue, Due::NOW, "k", OnConflict::Replace);
        let (producer, new_id) = (producer.clone(), new.id);
        let call = async move { producer.schedule(new).await };
        let (answer, leased) = race_with_claim(&runner, &queue, call).await?;
        let as_expected = match answer {
            Scheduled::Replaced(_) => leased.is_empty() || leased == [new_id],
            Scheduled::AlreadyRunning(_) => leased == [old.id],
            _ => false,
        };
        ensure!(
            as_expected,
            "after `Replaced` the old job never starts: {answer:?}, claimed were {leased:?}"
        );
    }
    Ok(())
}
