//! The shard in which a queue's jobs are stored, found and listed. A queue without shards stores
//! nothing about shards.

use std::collections::HashSet;

use dq_core::{
    Backend, Cancelled, DeadKind, DeadReason, Due, JobRef, JobState, OnConflict, Operation,
    Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Timestamp, Verdict,
};
use dq_servers::{Redis, Reply, shared_redis};

use crate::fixture::{
    LATER, Topology, by_key, claim, cluster, ids, job, list, process, queue, settle,
};

fn keys(server: &Redis, queue: &dq_core::QueueName) -> Vec<String> {
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
async fn a_queue_without_shards_stores_no_layout() {
    let (plain, one) = (queue(), queue());
    for (queue, shards) in [(&plain, None), (&one, Some(1))] {
        let process = process(Topology::Server, queue, shards).await;
        process.schedule(vec![job(queue, Some("k"), Due::NOW)]).await.unwrap();
        let taken = claim(&process, queue, 9).await;
        settle(&process, &taken, &Verdict::Done).await;
        let meta = format!("{{dq}}:meta:{queue}");
        let layout = shared_redis().command(&["HEXISTS", &meta, "layout"]);
        assert_eq!(layout.int(), 0);
        assert!(keys(shared_redis(), queue).iter().all(|key| key.starts_with("{dq}:")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_shards_stores_its_layout() {
    let queue = queue();
    let four = process(Topology::Server, &queue, Some(4)).await;
    four.schedule(vec![job(&queue, Some("k"), LATER)]).await.unwrap();
    let layout = shared_redis().command(&["HGET", &format!("{{dq}}:meta:{queue}"), "layout"]);
    // Change 1, to four shards.
    assert_eq!(layout.text(), "1/4");
    let due: Vec<_> =
        keys(shared_redis(), &queue).into_iter().filter(|key| key.contains("}:due:")).collect();
    assert!(due.iter().all(|key| key.starts_with("{dq#4.")), "{due:?}");
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
        two.operate(Operation::Purge { queue: &queue }).await.unwrap();
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
        let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let keyed =
            |due: Due| names.iter().map(|name| job(&queue, Some(name), due)).collect::<Vec<_>>();
        let jobs = keyed(LATER.into());
        four.schedule(jobs.clone()).await.unwrap();
        let other = process(topology, &queue, None).await;
        for process in [&other, &four] {
            for job in &jobs {
                let by_id = JobRef::new(queue.clone(), job.id);
                assert!(process.get(&by_id).await.unwrap().is_some());
                let by_key = JobRef::new(queue.clone(), job.key.clone().unwrap());
                assert_eq!(process.get(&by_key).await.unwrap().unwrap().job.id, job.id);
            }
            let kept = process.schedule(keyed(LATER.into())).await.unwrap();
            assert!(kept.iter().all(|answer| matches!(answer, Scheduled::Kept(_))), "{kept:?}");
        }
        let replacing: Vec<_> =
            keyed(Due::NOW).into_iter().map(|job| job.on_conflict(OnConflict::Replace)).collect();
        let replaced = other.schedule(replacing).await.unwrap();
        assert!(replaced.iter().all(|answer| matches!(answer, Scheduled::Replaced(_))));
        let moved = Reschedule { job: by_key(&queue, "0"), due: Due::After(LATER) };
        let answer = other.reschedule(&[moved]).await.unwrap();
        assert!(matches!(answer[..], [Rescheduled::Moved(_)]), "{answer:?}");
        let cancelled = four.cancel(&[by_key(&queue, "0"), by_key(&queue, "none")]).await.unwrap();
        assert_eq!(cancelled, [Cancelled::Cancelled, Cancelled::NotFound]);

        let taken = claim(&four, &queue, 100).await;
        assert_eq!(taken.len(), 39);
        let renewals: Vec<_> =
            taken.iter().map(|leased| Renewal::new(leased.lease(), LATER * 2)).collect();
        for process in [&four, &other] {
            let answers = process.renew(&renewals).await.unwrap();
            assert!(answers.iter().all(|answer| matches!(answer, Renewed::Until(_))));
        }
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        settle(&other, &taken[..20], &Verdict::Dead { reason, failed: true }).await;
        settle(&other, &taken[20..], &Verdict::Done).await;

        let live = taken[0].job.key.clone().unwrap();
        let again = job(&queue, Some(live.as_str()), LATER);
        assert!(other.schedule(vec![again]).await.unwrap()[0].is_stored());
        let dead: Vec<_> = list(&other, &queue, JobState::Dead, 9).await;
        assert_eq!(dead.len(), 20);
        let removed = [taken[1].job.id, taken[2].job.id];
        let remove = Operation::Remove { queue: &queue, jobs: &removed };
        assert_eq!(other.operate(remove).await.unwrap().affected, 2);
        let replay = Operation::Replay {
            queue: &queue,
            jobs: &dq_testkit::fixture::dead_ids(&four, &queue).await[..],
            due: Due::NOW,
        };
        assert_eq!(four.operate(replay).await.unwrap().affected, 17);
        let stats = &other.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
        assert_eq!((stats.ready, stats.scheduled, stats.dead), (17, 1, 1), "{stats:?}");
        assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
        let purged = other.operate(Operation::Purge { queue: &queue }).await.unwrap().affected;
        assert_eq!(purged, 19);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_all_data_is_used_again() {
    let server = Redis::start();
    let queue = queue();
    let mut config = dq_redis::RedisConfig::new(server.url());
    config.shards.insert(queue.clone(), 4);
    let environment = dq_core::config::Environment::default();
    let four = dq_redis::RedisBackend::connect(&config, &environment).await.unwrap();
    four.schedule((0..20).map(|_| job(&queue, None, LATER)).collect()).await.unwrap();
    server.command(&["FLUSHALL"]);
    let jobs: Vec<_> = (0..20).map(|n| job(&queue, Some(&n.to_string()), Due::NOW)).collect();
    let wanted: HashSet<_> = jobs.iter().map(|job| job.id).collect();
    four.schedule(jobs).await.unwrap();
    let gone = four.cancel(&[by_key(&queue, "none")]).await.unwrap();
    assert_eq!(gone, [Cancelled::NotFound]);
    let taken = claim(&four, &queue, 50).await;
    assert_eq!(ids(&taken).into_iter().collect::<HashSet<_>>(), wanted);
}
