//! The behaviour suite tests calls of processes with equal settings; here they differ.

use dq_core::{
    Backend, Cancelled, Due, JobRef, JobState, NewJob, Operation, QueueName, Renewal, Renewed,
    Reschedule, Rescheduled, Scheduled, Timestamp, Verdict,
};
use dq_servers::{Redis, Reply, shared_redis};

use crate::common::{HOUR, by_key, command_calls, dead, list, purge, replay_all};
use crate::shards::fixture::{
    Topology, claim, cluster, job, keyed, process, process_at, queue, settle, stats,
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

#[tokio::test]
async fn a_claim_from_the_shards_of_a_single_server_is_one_call_for_the_oldest_jobs() {
    let (server, queue) = (Redis::start(), queue());
    let four = process_at(server.url(), &queue, Some(4)).await;
    let due = |n: i64| Due::At(Timestamp::from_millis(n));
    four.schedule((0..40).map(|n| job(&queue, None, due(n))).collect()).await.unwrap();
    claim(&four, &queue, 1).await;
    let before = command_calls(&server)["evalsha"];
    let taken = claim(&four, &queue, 9).await;
    assert_eq!(command_calls(&server)["evalsha"] - before, 1);
    let dues: Vec<_> = taken.iter().map(|leased| leased.job.due.as_millis()).collect();
    assert_eq!(dues, (1..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_queue_with_shards_stores_its_layout() {
    // `1/4`: the first layout change, to four shards.
    for (shards, layout, prefix) in
        [(None, "", "{dq}:"), (Some(1), "", "{dq}:"), (Some(4), "1/4", "{dq#4.")]
    {
        let queue = queue();
        let process = process(Topology::Server, &queue, shards).await;
        process.schedule(vec![job(&queue, Some("k"), HOUR)]).await.unwrap();
        let stored = shared_redis().command(&["HGET", &format!("{{dq}}:meta:{queue}"), "layout"]);
        assert_eq!(if stored.is_nil() { String::new() } else { stored.text() }, layout);
        let mut due = keys(shared_redis(), &queue);
        due.retain(|key| key.contains("}:due:"));
        assert!(!due.is_empty() && due.iter().all(|key| key.starts_with(prefix)), "{due:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_merge_shards_in_order() {
    let queue = queue();
    let two = process(Topology::Cluster, &queue, Some(2)).await;
    // 37 due times for 2000 jobs, so that pages end between jobs with equal times.
    let due = |n: i64| Due::At(Timestamp::from_millis(4_000_000_000_000 + n % 37));
    two.schedule((0..2_000).map(|n| job(&queue, None, due(n))).collect()).await.unwrap();
    let all = list(&two, &queue, JobState::Scheduled, 1000).await;
    assert_eq!(all.len(), 2_000);
    assert!(all.is_sorted_by_key(|view| view.job.due));
    for page_length in [7, 999] {
        let listed = list(&two, &queue, JobState::Scheduled, page_length).await;
        assert_eq!(listed, all, "{page_length}");
    }
    purge(&two, &queue).await;
}

/// The process `four` has the shard count in its settings, `other` has not.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_finds_jobs_in_their_shards() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let four = process(topology, &queue, Some(4)).await;
        let other = process(topology, &queue, None).await;
        assert!(claim(&other, &queue, 9).await.is_empty());
        let jobs: Vec<NewJob> = keyed(&queue, 40).into_iter().map(|job| job.due(HOUR)).collect();
        four.schedule(jobs.clone()).await.unwrap();

        for job in &jobs {
            let by_id = JobRef::new(queue.clone(), job.id);
            assert!(other.get(&by_id).await.unwrap().is_some());
            let by_key = JobRef::new(queue.clone(), job.key.clone().unwrap());
            assert_eq!(other.get(&by_key).await.unwrap().unwrap().job.id, job.id);
        }
        let kept = other.schedule(keyed(&queue, 40)).await.unwrap();
        assert!(kept.iter().all(|answer| matches!(answer, Scheduled::Kept(_))), "{kept:?}");

        // Waiting jobs: all are made due but the one with key 0, which is cancelled.
        let due_now = |n: i32| Reschedule { job: by_key(&queue, &n.to_string()), due: Due::NOW };
        let moved = other.reschedule(&(1..40).map(due_now).collect::<Vec<_>>()).await.unwrap();
        assert!(moved.iter().all(|answer| matches!(answer, Rescheduled::Moved(_))), "{moved:?}");
        let targets = [by_key(&queue, "0"), by_key(&queue, "none")];
        let cancelled = other.cancel(&targets).await.unwrap();
        assert_eq!(cancelled, [Cancelled::Cancelled, Cancelled::NotFound]);

        // Each process finds the other's leases.
        let taken = claim(&four, &queue, 100).await;
        assert_eq!(taken.len(), 39);
        let renewals: Vec<_> =
            taken.iter().map(|leased| Renewal::new(leased.lease(), HOUR * 2)).collect();
        let renewed = other.renew(&renewals).await.unwrap();
        assert!(renewed.iter().all(|answer| matches!(answer, Renewed::Until(_))));
        settle(&other, &taken[..20], &dead()).await;
        settle(&other, &taken[20..], &Verdict::Done).await;

        // Dead jobs: two are removed, and one has a key with a live job.
        let key = taken[0].job.key.clone().unwrap();
        let again = job(&queue, Some(key.as_str()), HOUR);
        assert!(other.schedule(vec![again]).await.unwrap()[0].is_stored());
        let removed = [taken[1].job.id, taken[2].job.id];
        let remove = Operation::Remove { queue: &queue, jobs: &removed };
        assert_eq!(other.operate(remove).await.unwrap().affected, 2);
        assert_eq!(replay_all(&other, &queue).await, 17);
        let stats = stats(&other, &queue).await;
        assert_eq!((stats.ready, stats.scheduled, stats.dead), (17, 1, 1), "{stats:?}");
        assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
        assert_eq!(purge(&other, &queue).await, 19);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_named_twice_in_a_batch_changes_in_the_order_of_the_batch() {
    let queue = queue();
    let process = process(Topology::Server, &queue, Some(8)).await;
    for job in keyed(&queue, 20) {
        let by_id = JobRef::new(queue.clone(), job.id);
        let by_key = JobRef::new(queue.clone(), job.key.clone().unwrap());
        process.schedule(vec![job.due(HOUR)]).await.unwrap();
        for names in [[&by_id, &by_key], [&by_key, &by_id]] {
            let moves = names.into_iter().zip([2, 3]);
            let moves =
                moves.map(|(job, n)| Reschedule { job: job.clone(), due: Due::After(HOUR * n) });
            let moved = process.reschedule(&moves.collect::<Vec<_>>()).await.unwrap();
            let [_, Rescheduled::Moved(last)] = &moved[..] else { panic!("{moved:?}") };
            let view = process.get(&by_id).await.unwrap().unwrap();
            assert_eq!(view.job.due, last.due, "the last change counts");
        }
        let cancelled = process.cancel(&[by_id, by_key]).await.unwrap();
        assert_eq!(cancelled, [Cancelled::Cancelled, Cancelled::NotFound]);
    }
}
