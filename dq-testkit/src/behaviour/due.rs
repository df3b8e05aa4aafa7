//! Due times: never early, soon after, oldest first.

use std::time::Duration;

use dq_core::{Due, Timestamp};

use super::failure::{Passed, ensure, ensure_eq};
use super::handle::{Counts, ids, want};
use super::stand::{LATER, SOON, Stand};
use super::trial::topic;

topic! { "due":
    never_early_by_a_millisecond [VirtualTime],
    never_early_on_a_clock_that_runs [RealTime],
    shorter_delay_behind_a_longer_one_runs_first,
    oldest_due_first,
    equal_times_in_order_of_insertion [Fifo],
    due_while_nobody_was_there_comes_at_once,
    no_listener_is_needed,
    clock_set_back_is_obeyed [VirtualTime],
}

async fn never_early_by_a_millisecond(stand: Stand) -> Passed {
    for ahead in [1, 2, 7, 499, 500, 501, 999, 1_000, 1_001, 1_500, 60_000, 86_399_999] {
        let queue = stand.queue();
        let due = stand.now().await? + Duration::from_millis(ahead);
        stand.create(stand.job(&queue, due)).await?;
        stand.take_none(&queue, "the job was only just scheduled").await?;
        stand.reach(due - Duration::from_millis(1)).await?;
        stand.take_none(&queue, "the due time is one millisecond away").await?;
        stand.expect(&queue, Counts::scheduled(1), "one millisecond before").await?;
        stand.reach(due).await?;
        stand.expect(&queue, Counts::ready(1), "at the due time").await?;
        stand.take_one(&queue).await?;
    }
    Ok(())
}

async fn never_early_on_a_clock_that_runs(stand: Stand) -> Passed {
    let queue = stand.queue();
    let mut jobs: Vec<_> =
        (0..60).map(|n| stand.job(&queue, Duration::from_millis(n * 7 % 60 + 5))).collect();
    let start = stand.now().await?;
    jobs.extend((0..20).map(|n| stand.job(&queue, start + Duration::from_millis(n * 3 + 1))));
    let count = jobs.len();
    let answers = stand.put_all(jobs).await?;
    let mut taken = 0;
    while taken < count {
        // The claim's own checks refuse a job that is early by the store's clock at the claim.
        let claimed = stand.claim(&[want(&queue, 10)]).await?;
        for leased in &claimed.jobs {
            let promised = answers.iter().find(|answer| answer.id() == leased.job.id);
            ensure_eq!(
                Some(leased.job.due),
                promised.map(dq_core::Scheduled::due),
                "a job starts by the due time that was promised"
            );
        }
        taken += claimed.jobs.len();
        tokio::task::yield_now().await;
    }
    stand.take_none(&queue, "each job was leased already").await
}

async fn shorter_delay_behind_a_longer_one_runs_first(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, LATER)).await?;
    let short = stand.create(stand.job(&queue, SOON)).await?;
    stand.create(stand.job(&queue, LATER * 2)).await?;
    stand.reach(short.due).await?;
    ensure_eq!(
        stand.take_one(&queue).await?.job.id,
        short.id,
        "a shorter delay does not wait behind a longer one"
    );
    Ok(())
}

async fn oldest_due_first(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let mut wanted = Vec::new();
    for n in 0..50_u64 {
        // Every order of insertion that a sequence of steps of 17 among 50 gives.
        let due = now - Duration::from_millis(1 + n * 17 % 50);
        let id = stand.create(stand.job(&queue, due)).await?.id;
        wanted.push((due, id));
    }
    wanted.sort_unstable();
    let mut found = Vec::new();
    for _ in 0..5 {
        found.extend(stand.take(&queue, 10).await?.into_iter().map(|l| (l.job.due, l.job.id)));
    }
    ensure_eq!(found, wanted, "oldest due first, within a claim and from one to the next");
    Ok(())
}

async fn equal_times_in_order_of_insertion(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let mut jobs: Vec<_> = (0..30).map(|_| stand.job(&queue, now)).collect();
    // Ids grow with time; insertion order must not lean on that.
    jobs.reverse();
    jobs.swap(3, 20);
    let wanted: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let rest = jobs.split_off(10);
    stand.put_all(jobs).await?;
    for job in rest {
        stand.create(job).await?;
    }
    let mut found = Vec::new();
    for _ in 0..5 {
        found.extend(ids(&stand.take(&queue, 6).await?));
    }
    ensure_eq!(found, wanted, "equal due times fire in order of insertion");
    Ok(())
}

async fn due_while_nobody_was_there_comes_at_once(stand: Stand) -> Passed {
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, SOON)).await?;
    stand.reach(receipt.due + SOON).await?;
    // The very first call of any consumer, with no schedule call since.
    let claimed = stand.claim(&[want(&queue, 1)]).await?;
    ensure_eq!(
        ids(&claimed.jobs),
        [receipt.id],
        "a consumer that comes after the due time gets the job at once"
    );
    Ok(())
}

async fn no_listener_is_needed(stand: Stand) -> Passed {
    let queue = stand.queue();
    let first = stand.create(stand.job(&queue, SOON)).await?;
    let claimed = stand.claim(&[want(&queue, 1)]).await?;
    ensure!(claimed.jobs.is_empty() || claimed.now >= first.due, "never early");
    if claimed.jobs.is_empty() {
        // Whoever sleeps until `next_due` finds the job, though no hint was ever taken.
        let next_due = claimed.next_due.unwrap_or(Timestamp::MAX);
        ensure_eq!(next_due, first.due, "`next_due` says when to come again");
        stand.reach(next_due).await?;
        stand.take_one(&queue).await?;
    }
    Ok(())
}

async fn clock_set_back_is_obeyed(stand: Stand) -> Passed {
    let super::Time::Virtual(clock) = stand.time() else { return Ok(()) };
    let queue = stand.queue();
    let receipt = stand.create(stand.job(&queue, SOON)).await?;
    stand.create(stand.job(&queue, Due::At(receipt.due + SOON))).await?;
    stand.reach(receipt.due).await?;
    stand.expect(&queue, Counts { scheduled: 1, ..Counts::ready(1) }, "at the due time").await?;
    clock.set(receipt.due - Duration::from_millis(1));
    stand.expect(&queue, Counts::scheduled(2), "once the clock was set back").await?;
    stand.take_none(&queue, "by the store's clock the due time lies ahead again").await?;
    stand.reach(receipt.due).await?;
    ensure_eq!(stand.take_one(&queue).await?.job.id, receipt.id, "the due time comes again");
    Ok(())
}
