//! Claims: how much, of which queues, and when to come again.

use std::time::Duration;

use dq_core::{Due, Timestamp, Verdict, Want};

use super::failure::{Passed, ensure, ensure_eq};
use super::handle::{Counts, LEASE, SHORT_LEASE, ids, want};
use super::stand::{LATER, SOON, Stand};
use super::trial::topic;

topic! { "claim":
    leased_job_is_not_leased_again,
    at_most_max_of_each_queue,
    at_most_limit_in_all,
    wants_are_served_in_order,
    several_queues_in_one_call,
    no_bound_is_a_bound_too,
    only_wanted_queues_are_touched,
    unknown_queue_gives_nothing,
    no_wants_no_jobs,
    asking_for_nothing_says_when,
    limit_of_nothing_says_when,
    next_due_is_the_next_due_time,
    next_due_is_the_next_end_of_a_lease,
    next_due_has_come_when_more_is_due,
    next_due_is_the_earliest_of_all_wants,
    next_due_is_none_when_nothing_waits,
    lease_lasts_as_long_as_asked,
    each_want_has_a_lease_of_its_own,
}

async fn leased_job_is_not_leased_again(stand: Stand) -> Passed {
    let queue = stand.queue();
    stand.create(stand.job(&queue, Due::NOW)).await?;
    let taken = stand.take_one(&queue).await?;
    stand.take_none(&queue, "the only job is leased").await?;
    stand.take_none(&queue, "asking again changes nothing").await?;
    stand.expect(&queue, Counts::running(1), "while it is leased").await?;
    stand.accept(&taken, Verdict::Done).await
}

async fn at_most_max_of_each_queue(stand: Stand) -> Passed {
    let queue = stand.queue();
    fill(&stand, &queue, 10).await?;
    let mut sizes = Vec::new();
    for max in [1, 3, 4, 5, 1] {
        sizes.push(stand.take(&queue, max).await?.len());
    }
    ensure_eq!(sizes, [1, 3, 4, 2, 0], "a claim leases as many as are wanted and due");
    Ok(())
}

async fn at_most_limit_in_all(stand: Stand) -> Passed {
    let queues = [stand.queue(), stand.queue(), stand.queue()];
    for queue in &queues {
        fill(&stand, queue, 5).await?;
    }
    let wants = queues.each_ref().map(|queue| want(queue, 4));
    let mut sizes = Vec::new();
    for limit in [1, 7, 12, 12] {
        sizes.push(stand.claim_at_most(limit, &wants).await?.jobs.len());
    }
    // Of the first 8 the first queue gave 5, the second 3; then 0, 2 and 4; then the last one.
    ensure_eq!(sizes, [1, 7, 6, 1], "a claim is bounded as a whole too");
    Ok(())
}

async fn wants_are_served_in_order(stand: Stand) -> Passed {
    let (first, second) = (stand.queue(), stand.queue());
    // What is second in line is older: the order is of wants, not of due times.
    let old = stand.now().await? - LATER;
    stand.put_all((0..3).map(|_| stand.job(&second, old)).collect()).await?;
    fill(&stand, &first, 3).await?;
    let wants = [want(&first, 10), want(&second, 10)];
    let served = |claimed: dq_core::Claimed| {
        let of = |queue| claimed.jobs.iter().filter(|leased| leased.job.queue == queue).count();
        (of(first.clone()), of(second.clone()))
    };
    let claimed = stand.claim_at_most(4, &wants).await?;
    ensure_eq!(served(claimed), (3, 1), "wants are served in order");
    let claimed = stand.claim_at_most(4, &wants).await?;
    ensure_eq!(served(claimed), (0, 2), "the second want gets what the first leaves");
    Ok(())
}

async fn several_queues_in_one_call(stand: Stand) -> Passed {
    let queues: Vec<_> = (0..20).map(|_| stand.queue()).collect();
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.extend(queues.iter().map(|queue| stand.job(queue, Due::NOW)));
    }
    stand.put_all(jobs).await?;
    let wants: Vec<_> = queues.iter().map(|queue| want(queue, 2)).collect();
    let claimed = stand.claim(&wants).await?;
    ensure_eq!(claimed.jobs.len(), 40, "each of twenty queues gives the two that are wanted");
    for queue in &queues {
        let counts = Counts { ready: 1, ..Counts::running(2) };
        stand.expect(queue, counts, "after one claim over twenty queues").await?;
    }
    Ok(())
}

async fn no_bound_is_a_bound_too(stand: Stand) -> Passed {
    let queue = stand.queue();
    fill(&stand, &queue, 30).await?;
    let claimed = stand.claim_at_most(usize::MAX, &[want(&queue, usize::MAX)]).await?;
    ensure_eq!(claimed.jobs.len(), 30, "whoever wants all gets all");
    Ok(())
}

async fn only_wanted_queues_are_touched(stand: Stand) -> Passed {
    let (wanted, other) = (stand.queue(), stand.queue());
    fill(&stand, &wanted, 2).await?;
    fill(&stand, &other, 2).await?;
    stand.take(&wanted, 10).await?;
    stand.expect(&other, Counts::ready(2), "in a queue that nobody asked for").await
}

async fn unknown_queue_gives_nothing(stand: Stand) -> Passed {
    let (unknown, known) = (stand.queue(), stand.queue());
    let id = stand.create(stand.job(&known, Due::NOW)).await?.id;
    let claimed = stand.claim(&[want(&unknown, 5), want(&known, 5)]).await?;
    ensure_eq!(ids(&claimed.jobs), [id], "a queue never seen does not disturb the others");
    let claimed = stand.claim(&[want(&unknown, 5)]).await?;
    ensure_eq!(claimed.next_due, None, "in a queue never seen nothing waits");
    Ok(())
}

async fn no_wants_no_jobs(stand: Stand) -> Passed {
    let claimed = stand.claim_at_most(10, &[]).await?;
    ensure!(claimed.jobs.is_empty() && claimed.next_due.is_none(), "no wants, no jobs");
    Ok(())
}

async fn asking_for_nothing_says_when(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = stand.now().await? + LATER;
    stand.create(stand.job(&queue, due)).await?;
    let claimed = stand.claim(&[want(&queue, 0)]).await?;
    ensure_eq!(claimed.next_due, Some(due), "asking for nothing still reports `next_due`");
    fill(&stand, &queue, 1).await?;
    let claimed = stand.claim(&[want(&queue, 0)]).await?;
    ensure!(
        claimed.next_due.is_some_and(|next| next <= claimed.now),
        "when a job is due, `next_due` is not after `now`: {claimed:?}"
    );
    stand.expect(&queue, Counts { ready: 1, ..Counts::scheduled(1) }, "nothing was wanted").await
}

async fn limit_of_nothing_says_when(stand: Stand) -> Passed {
    let queue = stand.queue();
    let due = stand.now().await? + LATER;
    stand.create(stand.job(&queue, due)).await?;
    let claimed = stand.claim_at_most(0, &[want(&queue, 5)]).await?;
    ensure_eq!(claimed.next_due, Some(due), "a limit of nothing still reports `next_due`");
    Ok(())
}

async fn next_due_is_the_next_due_time(stand: Stand) -> Passed {
    let queue = stand.queue();
    let now = stand.now().await?;
    let mut wanted = None::<Timestamp>;
    for ahead in [90, 30, 60, 10, 80, 20] {
        let due = now + LATER + Duration::from_millis(ahead);
        stand.create(stand.job(&queue, due)).await?;
        wanted = Some(wanted.map_or(due, |earliest| earliest.min(due)));
        let claimed = stand.claim(&[want(&queue, 5)]).await?;
        ensure_eq!(claimed.next_due, wanted, "`next_due` is the earliest due time that waits");
    }
    Ok(())
}

async fn next_due_is_the_next_end_of_a_lease(stand: Stand) -> Passed {
    let queue = stand.queue();
    fill(&stand, &queue, 1).await?;
    stand.create(stand.job(&queue, LATER)).await?;
    let claimed = stand.claim(&[want(&queue, 1)]).await?;
    ensure_eq!(
        claimed.next_due,
        claimed.jobs.first().map(|leased| leased.leased_until),
        "the job just leased may lapse before the next due time, so `next_due` is its lease's end"
    );
    let again = stand.claim(&[want(&queue, 1)]).await?;
    ensure_eq!(again.next_due, claimed.next_due, "`next_due` counts leases given out earlier");
    stand.finish_all(&claimed.jobs).await?;
    let after = stand.claim(&[want(&queue, 1)]).await?;
    ensure!(
        after.next_due > claimed.next_due,
        "a lease that has been settled does not lapse: {after:?}"
    );
    Ok(())
}

async fn next_due_has_come_when_more_is_due(stand: Stand) -> Passed {
    let queue = stand.queue();
    fill(&stand, &queue, 3).await?;
    for left in (0..3).rev() {
        let claimed = stand.claim(&[want(&queue, 1)]).await?;
        let come = claimed.next_due.is_some_and(|next| next <= claimed.now);
        ensure_eq!(come, left > 0, "`next_due` has come exactly while more is due: {claimed:?}");
    }
    // The same, when it is the bound of the whole claim that left something.
    let (first, second) = (stand.queue(), stand.queue());
    fill(&stand, &first, 1).await?;
    fill(&stand, &second, 1).await?;
    let claimed = stand.claim_at_most(1, &[want(&first, 1), want(&second, 1)]).await?;
    ensure!(
        claimed.next_due.is_some_and(|next| next <= claimed.now),
        "what the limit left is due: {claimed:?}"
    );
    Ok(())
}

async fn next_due_is_the_earliest_of_all_wants(stand: Stand) -> Passed {
    let queues = [stand.queue(), stand.queue(), stand.queue()];
    let now = stand.now().await?;
    for (queue, hours) in queues.iter().zip([2, 1, 3]) {
        stand.create(stand.job(queue, now + LATER * hours)).await?;
    }
    let wants = queues.each_ref().map(|queue| want(queue, 5));
    let claimed = stand.claim(&wants).await?;
    ensure_eq!(claimed.next_due, Some(now + LATER), "`next_due` is the earliest of all wants");
    let claimed = stand.claim(&wants[..1]).await?;
    ensure_eq!(claimed.next_due, Some(now + LATER * 2), "other queues do not count");
    Ok(())
}

async fn next_due_is_none_when_nothing_waits(stand: Stand) -> Passed {
    let queue = stand.queue();
    fill(&stand, &queue, 1).await?;
    let taken = stand.take_one(&queue).await?;
    stand.accept(&taken, Verdict::Done).await?;
    let claimed = stand.claim(&[want(&queue, 5)]).await?;
    ensure_eq!(claimed.next_due, None, "nothing waits and nothing is leased");
    Ok(())
}

async fn lease_lasts_as_long_as_asked(stand: Stand) -> Passed {
    for lease_for in [SHORT_LEASE, Duration::from_millis(60_001), LEASE, LATER * 24] {
        let queue = stand.queue();
        fill(&stand, &queue, 1).await?;
        let claimed = stand.claim(&[Want { queue, max: 1, lease_for }]).await?;
        ensure_eq!(
            claimed.jobs.first().map(|leased| leased.leased_until),
            Some(claimed.now + lease_for),
            "a lease lasts as long as asked from the store's now"
        );
    }
    Ok(())
}

async fn each_want_has_a_lease_of_its_own(stand: Stand) -> Passed {
    let (quick, slow) = (stand.queue(), stand.queue());
    fill(&stand, &quick, 1).await?;
    fill(&stand, &slow, 1).await?;
    let wants = [
        Want { queue: quick.clone(), max: 1, lease_for: SHORT_LEASE },
        Want { queue: slow.clone(), max: 1, lease_for: LEASE },
    ];
    let claimed = stand.claim(&wants).await?;
    stand.reach(claimed.now + SHORT_LEASE + SOON).await?;
    stand.expect(&quick, Counts::ready(1), "once its short lease has ended").await?;
    stand.expect(&slow, Counts::running(1), "while its long lease lasts").await
}

/// Stores jobs that are due at once.
async fn fill(stand: &Stand, queue: &dq_core::QueueName, count: usize) -> Passed {
    stand.put_all((0..count).map(|_| stand.job(queue, Due::NOW)).collect()).await?;
    Ok(())
}
