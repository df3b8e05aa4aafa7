//! Shards at work: where jobs lie, what a queue without shards costs, what others leave behind.

use std::collections::HashSet;

use dq_core::{Backend, Cancelled, Due, JobState, Operation, Timestamp, Verdict};
use dq_servers::{Redis, Reply, shared_redis};

use crate::rig::{LATER, Place, by_key, claim, cluster, ids, job, list, process, queue, settle};

/// The keys at a server that belong to a queue.
fn keys(server: &Redis, queue: &dq_core::QueueName) -> Vec<String> {
    let found = server.command(&["KEYS", &format!("*:{queue}")]);
    found.list().iter().map(Reply::text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_queue_lies_on_several_nodes() {
    let queue = queue();
    let hot = process(Place::Cluster, &queue, Some(16)).await;
    hot.schedule((0..200).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
    let nodes = cluster().nodes();
    let full = nodes.iter().filter(|node| !keys(node, &queue).is_empty()).count();
    assert_eq!(full, nodes.len(), "all nodes have a part");
    let taken = claim(&hot, &queue, 200).await;
    assert_eq!(taken.len(), 200);
    assert!(taken.is_sorted_by_key(|leased| leased.job.due), "the oldest first");
    settle(&hot, &taken, &Verdict::Done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_shards_has_no_layout() {
    let (plain, one) = (queue(), queue());
    for (queue, shards) in [(&plain, None), (&one, Some(1))] {
        let process = process(Place::Server, queue, shards).await;
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
async fn a_queue_that_begins_with_shards_has_one_home_for_each_key() {
    let queue = queue();
    let four = process(Place::Server, &queue, Some(4)).await;
    four.schedule(vec![job(&queue, Some("k"), LATER)]).await.unwrap();
    let layout = shared_redis().command(&["HGET", &format!("{{dq}}:meta:{queue}"), "layout"]);
    assert_eq!(layout.text(), "1:4");
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_merge_shards_in_order() {
    for place in [Place::Server, Place::Cluster] {
        let queue = queue();
        let two = process(place, &queue, Some(2)).await;
        let due = |n: i64| Due::At(Timestamp::from_millis(4_000_000_000_000 + n % 37));
        let jobs: Vec<_> = (0..2_000).map(|n| job(&queue, None, due(n))).collect();
        two.schedule(jobs).await.unwrap();
        let whole = list(&two, &queue, JobState::Scheduled, 1000).await;
        assert_eq!(whole.len(), 2_000);
        assert!(whole.is_sorted_by_key(|view| view.job.due));
        for limit in [7, 100, 999] {
            assert_eq!(list(&two, &queue, JobState::Scheduled, limit).await, whole, "{limit}");
        }
        two.operate(Operation::Purge { queue: &queue }).await.unwrap();
    }
}

/// A runner that was there before the shards, and that does nothing but claim.
#[tokio::test(flavor = "multi_thread")]
async fn who_only_claims_hears_of_shards() {
    for place in [Place::Server, Place::Cluster] {
        let queue = queue();
        let runner = process(place, &queue, None).await;
        assert!(claim(&runner, &queue, 9).await.is_empty());
        let four = process(place, &queue, Some(4)).await;
        four.schedule((0..40).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
        let taken = claim(&runner, &queue, 100).await;
        assert_eq!(taken.len(), 40);
        settle(&runner, &taken, &Verdict::Done).await;
    }
}

/// A change that was begun by a process that died is brought to its end by others.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_broken_off_is_finished_by_others() {
    for place in [Place::Server, Place::Cluster] {
        let queue = queue();
        let one = process(place, &queue, None).await;
        let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let keyed = |due: Due| names.iter().map(move |name| (name.clone(), due));
        let jobs = keyed(LATER.into()).map(|(name, due)| job(&queue, Some(&name), due));
        one.schedule(jobs.collect()).await.unwrap();
        // Only the first shard holds the new layout. In the other case it also marks a replay.
        for (n, layout) in ["7:1,4", "9!1,4,3"].into_iter().enumerate() {
            let meta = format!("{{dq}}:meta:{queue}");
            let server = match place {
                Place::Server => shared_redis(),
                Place::Cluster => cluster().owner(&meta),
            };
            server.command(&["HSET", &meta, "layout", layout]);
            let late = process(place, &queue, None).await;
            let new = (0..40).map(|k| job(&queue, Some(&format!("{n} {k}")), LATER)).collect();
            for process in [&late, &one] {
                let again = names.iter().map(|name| job(&queue, Some(name), LATER)).collect();
                let answers = process.schedule(again).await.unwrap();
                assert!(answers.iter().all(|answer| !answer.is_stored()));
            }
            let answers = late.schedule(new).await.unwrap();
            assert!(answers.iter().all(dq_core::Scheduled::is_stored));
        }
        assert_eq!(list(&one, &queue, JobState::Scheduled, 50).await.len(), 120);
        one.operate(Operation::Purge { queue: &queue }).await.unwrap();
    }
}

/// Half of the shards have not heard of a change, and neither has one process. Who asks them for a key
/// and finds nothing must not find it created there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_asked_for_a_key_creates_it_no_more() {
    let queue = queue();
    let old = process(Place::Server, &queue, Some(4)).await;
    old.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
    for tag in ["dq", "dq#1"] {
        let meta = format!("{{{tag}}}:meta:{queue}");
        shared_redis().command(&["HSET", &meta, "layout", "2:4,2"]);
    }
    let new = process(Place::Server, &queue, None).await;
    for n in 0..20 {
        let jobs = [&new, &old].map(|_| job(&queue, Some(&n.to_string()), LATER));
        let [first, second] = jobs;
        assert!(new.schedule(vec![first]).await.unwrap()[0].is_stored());
        assert!(!old.schedule(vec![second]).await.unwrap()[0].is_stored(), "{n} is live twice");
    }
}

/// A server that has lost everything does not confuse those who remember.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_emptied_is_used_again() {
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
