//! The shard in which a queue's jobs are stored, found and listed. A queue without shards stores
//! nothing about shards.

use dq_core::{
    Backend, Cancelled, Due, JobRef, JobState, LeasedJob, NewJob, OnConflict, Operation, QueueName,
    Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Timestamp, Verdict,
};
use dq_redis::RedisBackend;
use dq_servers::{Redis, Reply, shared_redis};

use crate::shards::fixture::{
    LATER, Topology, by_key, claim, cluster, dead, job, keyed, list, process, purge, queue, settle,
    stats,
};

fn keys(server: &Redis, queue: &QueueName) -> Vec<String> {
    let found = server.command(&["KEYS", &format!("*:{queue}")]);
    found.list().iter().map(Reply::text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_on_several_nodes() {
    let queue = queue();
    let sixteen = process(Topology::Cluster, &queue, Some(16)).await;
    sixteen.schedule((0..200).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
    let nodes = cluster().nodes();
    let used = nodes.iter().filter(|node| !keys(node, &queue).is_empty()).count();
    assert_eq!(used, nodes.len(), "every node has keys of the queue");
    let taken = claim(&sixteen, &queue, 200).await;
    assert_eq!(taken.len(), 200);
    assert!(taken.is_sorted_by_key(|leased| leased.job.due), "the oldest first");
    settle(&sixteen, &taken, &Verdict::Done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_queue_with_shards_stores_its_layout() {
    // `1/4`: the first layout change, to four shards.
    for (shards, layout, prefix) in
        [(None, "", "{dq}:"), (Some(1), "", "{dq}:"), (Some(4), "1/4", "{dq#4.")]
    {
        let queue = queue();
        let process = process(Topology::Server, &queue, shards).await;
        process.schedule(vec![job(&queue, Some("k"), LATER)]).await.unwrap();
        let stored = shared_redis().command(&["HGET", &format!("{{dq}}:meta:{queue}"), "layout"]);
        assert_eq!(if stored.is_nil() { String::new() } else { stored.text() }, layout);
        let mut due = keys(shared_redis(), &queue);
        due.retain(|key| key.contains("}:due:"));
        assert!(!due.is_empty() && due.iter().all(|key| key.starts_with(prefix)), "{due:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_merge_shards_in_order() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let two = process(topology, &queue, Some(2)).await;
        // 37 due times for 2000 jobs, so that pages end between jobs with equal times.
        let due = |n: i64| Due::At(Timestamp::from_millis(4_000_000_000_000 + n % 37));
        let jobs: Vec<_> = (0..2_000).map(|n| job(&queue, None, due(n))).collect();
        two.schedule(jobs).await.unwrap();
        let all = list(&two, &queue, JobState::Scheduled, 1000).await;
        assert_eq!(all.len(), 2_000);
        assert!(all.is_sorted_by_key(|view| view.job.due));
        for limit in [7, 100, 999] {
            assert_eq!(list(&two, &queue, JobState::Scheduled, limit).await, all, "{limit}");
        }
        purge(&two, &queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_only_claims_uses_the_stored_number() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let runner = process(topology, &queue, None).await;
        assert!(claim(&runner, &queue, 9).await.is_empty());
        let four = process(topology, &queue, Some(4)).await;
        four.schedule((0..40).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
        let taken = claim(&runner, &queue, 100).await;
        assert_eq!(taken.len(), 40);
        settle(&runner, &taken, &Verdict::Done).await;
    }
}

/// Each call finds jobs stored by another process, by key and by id, with and without a configured
/// shard count.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_finds_jobs_in_their_shards() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let four = process(topology, &queue, Some(4)).await;
        let jobs = later(&queue);
        four.schedule(jobs.clone()).await.unwrap();
        let other = process(topology, &queue, None).await;
        for process in [&other, &four] {
            lookups_find_jobs(process, &queue, &jobs).await;
        }
        changes_find_waiting_jobs(&four, &other, &queue).await;
        let taken = renewals_and_settlements_find_leases(&four, &other, &queue).await;
        operations_find_dead_jobs(&four, &other, &queue, &taken).await;
    }
}

/// Jobs with the keys 0 to 39.
fn later(queue: &QueueName) -> Vec<NewJob> {
    keyed(queue, 40).into_iter().map(|job| job.due(LATER)).collect()
}

async fn lookups_find_jobs(process: &RedisBackend, queue: &QueueName, jobs: &[NewJob]) {
    for job in jobs {
        let by_id = JobRef::new(queue.clone(), job.id);
        assert!(process.get(&by_id).await.unwrap().is_some());
        let by_key = JobRef::new(queue.clone(), job.key.clone().unwrap());
        assert_eq!(process.get(&by_key).await.unwrap().unwrap().job.id, job.id);
    }
    let kept = process.schedule(later(queue)).await.unwrap();
    assert!(kept.iter().all(|answer| matches!(answer, Scheduled::Kept(_))), "{kept:?}");
}

/// Makes all jobs due now, and cancels the one with key 0.
async fn changes_find_waiting_jobs(four: &RedisBackend, other: &RedisBackend, queue: &QueueName) {
    let replacing: Vec<_> =
        keyed(queue, 40).into_iter().map(|job| job.on_conflict(OnConflict::Replace)).collect();
    let replaced = other.schedule(replacing).await.unwrap();
    assert!(replaced.iter().all(|answer| matches!(answer, Scheduled::Replaced(_))));
    let moved = Reschedule { job: by_key(queue, "0"), due: Due::After(LATER) };
    let answer = other.reschedule(&[moved]).await.unwrap();
    assert!(matches!(answer[..], [Rescheduled::Moved(_)]), "{answer:?}");
    let cancelled = four.cancel(&[by_key(queue, "0"), by_key(queue, "none")]).await.unwrap();
    assert_eq!(cancelled, [Cancelled::Cancelled, Cancelled::NotFound]);
}

/// Claims the 39 jobs left and makes the first 20 dead. Returns all of them.
async fn renewals_and_settlements_find_leases(
    four: &RedisBackend,
    other: &RedisBackend,
    queue: &QueueName,
) -> Vec<LeasedJob> {
    let taken = claim(four, queue, 100).await;
    assert_eq!(taken.len(), 39);
    let renewals: Vec<_> =
        taken.iter().map(|leased| Renewal::new(leased.lease(), LATER * 2)).collect();
    for process in [four, other] {
        let answers = process.renew(&renewals).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Renewed::Until(_))));
    }
    settle(other, &taken[..20], &dead()).await;
    settle(other, &taken[20..], &Verdict::Done).await;
    taken
}

async fn operations_find_dead_jobs(
    four: &RedisBackend,
    other: &RedisBackend,
    queue: &QueueName,
    taken: &[LeasedJob],
) {
    let key = taken[0].job.key.clone().unwrap();
    let again = job(queue, Some(key.as_str()), LATER);
    assert!(other.schedule(vec![again]).await.unwrap()[0].is_stored());
    let dead: Vec<_> = list(other, queue, JobState::Dead, 9).await;
    assert_eq!(dead.len(), 20);
    let removed = [taken[1].job.id, taken[2].job.id];
    let remove = Operation::Remove { queue, jobs: &removed };
    assert_eq!(other.operate(remove).await.unwrap().affected, 2);
    let replay = Operation::Replay {
        queue,
        jobs: &dq_testkit::fixture::dead_ids(four, queue).await[..],
        due: Due::NOW,
    };
    // 20 dead jobs without the two removed ones and the one whose key has a live job.
    assert_eq!(four.operate(replay).await.unwrap().affected, 17);
    let stats = stats(other, queue).await;
    assert_eq!((stats.ready, stats.scheduled, stats.dead), (17, 1, 1), "{stats:?}");
    assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
    assert_eq!(purge(other, queue).await, 19);
}
