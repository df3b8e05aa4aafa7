//! A queue's shard count changes only when a call stores jobs while the queue is empty.

use std::time::Duration;

use dq_core::{
    Backend, Due, ErrorKind, JobState, Operation, QueueName, Scheduled, Settled, Settlement,
    Verdict,
};
use dq_servers::{Redis, shared_redis};
use dq_testkit::fixture::wait_until;

use crate::common::{HOUR, by_key, dead, list, purge};
use crate::shards::fixture::{
    Topology, assert_refused, claim, cluster, job, keyed, process, process_at, queue, settle, stats,
};

fn server_of(topology: Topology, key: &str) -> &'static Redis {
    match topology {
        Topology::Server => shared_redis(),
        Topology::Cluster => cluster().owner(key),
    }
}

/// `first` has the stored count in its settings, `other` another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_refused_while_the_queue_holds_jobs() {
    for topology in [Topology::Server, Topology::Cluster] {
        for (stored, setting) in [(None, 4), (Some(4), 2), (Some(4), 1), (Some(2), 3)] {
            let queue = queue();
            let first = process(topology, &queue, stored).await;
            let other = process(topology, &queue, Some(setting)).await;
            let stored = stored.unwrap_or(1);
            let new = job(&queue, Some("k"), Due::NOW);
            first.schedule(vec![new.clone()]).await.unwrap();
            assert_only_schedule_is_refused(&other, &queue, stored, setting).await;
            let taken = claim(&first, &queue, 9).await;
            assert_only_schedule_is_refused(&other, &queue, stored, setting).await;
            settle(&first, &taken, &dead()).await;
            assert_only_schedule_is_refused(&other, &queue, stored, setting).await;

            let dead = list(&first, &queue, JobState::Dead, 9).await;
            assert_eq!(dead.len(), 1, "nothing is lost");
            assert_eq!(dead[0].job.id, new.id);
            let stats = stats(&first, &queue).await;
            assert_eq!((stats.stored(), stats.adds_up()), (1, Some(true)), "{stats:?}");
            purge(&first, &queue).await;
            let answers = other.schedule(vec![job(&queue, Some("k"), HOUR)]).await.unwrap();
            assert!(answers[0].is_stored(), "now the queue is empty");
            purge(&other, &queue).await;
        }
    }
}

/// `check` says why. Other calls see the queue's one job.
async fn assert_only_schedule_is_refused(
    other: &dq_redis::RedisBackend,
    queue: &QueueName,
    stored: u16,
    setting: u16,
) {
    let answer = other.schedule(vec![job(queue, Some("k"), HOUR)]).await;
    assert_refused(answer.map(drop), queue, stored, setting);
    let stats = stats(other, queue).await;
    assert_eq!(stats.stored(), 1, "{stats:?}");
    if stats.dead == 0 {
        assert!(other.get(&by_key(queue, "k")).await.unwrap().is_some());
    }
    let findings = other.check().await;
    let finding = findings
        .iter()
        .find(|found| found.code == "redis.queue-unusable" && found.cause.contains(queue.as_str()));
    assert!(finding.is_some_and(|found| found.remedy.contains("[[drain]]")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_queue_takes_the_number_of_the_settings() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let follower = process(topology, &queue, None).await;
        let mut ended = Vec::new();
        for shards in [None, Some(4), Some(2), Some(1), Some(4), Some(3)] {
            let process = process(topology, &queue, shards).await;
            let jobs = keyed(&queue, 30);
            let answers = process.schedule(jobs.clone()).await.unwrap();
            assert!(answers.iter().all(Scheduled::is_stored), "{shards:?}: {answers:?}");
            let repeated = follower.schedule(jobs).await.unwrap();
            assert_eq!(repeated, answers, "{shards:?}");
            let taken = claim(&follower, &queue, 100).await;
            assert_eq!(taken.len(), 30, "{shards:?}");
            settle(&process, &taken, &Verdict::Done).await;
            // Settled leases stay lost, also after each later change.
            ended.extend(taken.iter().map(|leased| Settlement::new(leased.lease(), Verdict::Done)));
            let answers = follower.settle(&ended).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == Settled::LostLease));
            let stats = stats(&follower, &queue).await;
            assert_eq!((stats.stored(), stats.adds_up()), (0, Some(true)), "{stats:?}");
        }
    }
}

/// Even a process that has only read jobs while the count matched its settings.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_does_not_change_the_number_back() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let writer = process(topology, &queue, Some(4)).await;
        let reader = process(topology, &queue, Some(4)).await;
        writer.schedule(vec![job(&queue, None, Due::NOW)]).await.unwrap();
        settle(&reader, &claim(&reader, &queue, 1).await, &Verdict::Done).await;
        let two = process(topology, &queue, Some(2)).await;
        two.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
        purge(&two, &queue).await;
        for four in [&writer, &reader, &writer] {
            stats(four, &queue).await;
            assert_refused(four.schedule(vec![job(&queue, None, HOUR)]).await, &queue, 2, 4);
        }
        two.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
        purge(&two, &queue).await;
    }
}

/// A process stays connected and continues with its cached count.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_is_stored_again_after_a_flush() {
    let redis = Redis::start();
    let queue = queue();
    let four = process_at(redis.url(), &queue, Some(4)).await;
    let follower = process_at(redis.url(), &queue, None).await;
    let jobs = || keyed(&queue, 30);
    for flushed_by in [&four, &follower] {
        four.schedule(jobs()).await.unwrap();
        assert_eq!(claim(&follower, &queue, 100).await.len(), 30);
        redis.command(&["FLUSHALL"]);
        flushed_by.schedule(jobs()).await.unwrap();
        let late = process_at(redis.url(), &queue, None).await;
        let stats = late.stats(&[]).await.unwrap();
        assert_eq!(stats.iter().map(|stats| &stats.queue).collect::<Vec<_>>(), [&queue]);
        assert_eq!(stats[0].stored(), 30, "{stats:?}");
        let kept = late.schedule(jobs()).await.unwrap();
        assert!(kept.iter().all(|answer| !answer.is_stored()), "each key is live once: {kept:?}");
        assert_eq!(claim(&late, &queue, 100).await.len(), 30);
        redis.command(&["FLUSHALL"]);
    }
}

/// Another process has stored jobs without knowing the count.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_cannot_be_stored_again_is_reported() {
    let redis = Redis::start();
    let queue = queue();
    let four = process_at(redis.url(), &queue, Some(4)).await;
    four.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
    redis.command(&["FLUSHALL"]);
    let plain = process_at(redis.url(), &queue, None).await;
    plain.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
    for _ in 0..2 {
        assert_refused(four.schedule(vec![job(&queue, None, HOUR)]).await, &queue, 1, 4);
    }
}

/// A tool with other settings must not disturb anyone.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_store_nothing_do_not_change_the_number() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let four = process(topology, &queue, Some(4)).await;
        four.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
        purge(&four, &queue).await;
        let tool = process(topology, &queue, Some(2)).await;
        stats(&tool, &queue).await;
        tool.check().await;
        assert!(claim(&tool, &queue, 9).await.is_empty());
        four.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
        assert_refused(tool.schedule(vec![job(&queue, None, HOUR)]).await, &queue, 4, 2);
        purge(&four, &queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_a_paused_queue_does_not_change() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let one = process(topology, &queue, None).await;
        one.operate(Operation::Pause { queue: &queue }).await.unwrap();
        let four = process(topology, &queue, Some(4)).await;
        assert_refused(four.schedule(vec![job(&queue, None, Due::NOW)]).await, &queue, 1, 4);
        one.schedule(vec![job(&queue, None, Due::NOW)]).await.unwrap();
        assert!(claim(&four, &queue, 9).await.is_empty(), "paused");
        purge(&one, &queue).await;

        let resumed = four.operate(Operation::Resume { queue: &queue }).await.unwrap();
        assert_eq!(resumed.affected, 1, "one queue");
        four.schedule((0..20).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
        assert_eq!(claim(&one, &queue, 100).await.len(), 20);
    }
}

/// Pins are in the old count's partitions.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_does_not_change_while_ids_are_pinned() {
    for topology in [Topology::Server, Topology::Cluster] {
        for (stored, setting) in [(None, 4), (Some(4), 2)] {
            let queue = queue();
            let first = process(topology, &queue, stored).await;
            let other = process(topology, &queue, Some(setting)).await;
            let pinned = job(&queue, None, Due::NOW).remember(HOUR);
            first.schedule(vec![pinned.clone()]).await.unwrap();
            settle(&first, &claim(&first, &queue, 1).await, &Verdict::Done).await;
            for _ in 0..2 {
                let answer = other.schedule(vec![job(&queue, None, HOUR)]).await;
                assert_refused(answer, &queue, stored.unwrap_or(1), setting);
            }
            let repeated = first.schedule(vec![pinned]).await.unwrap();
            assert!(matches!(repeated[..], [Scheduled::Ended(_)]), "{repeated:?}");
        }
    }

    let queue = queue();
    let one = process(Topology::Server, &queue, None).await;
    let four = process(Topology::Server, &queue, Some(4)).await;
    let briefly = job(&queue, None, Due::NOW).remember(Duration::from_millis(1));
    one.schedule(vec![briefly]).await.unwrap();
    settle(&one, &claim(&one, &queue, 1).await, &Verdict::Done).await;
    wait_until("the number changes", async || {
        four.schedule(vec![job(&queue, None, HOUR)]).await.is_ok()
    })
    .await;
    purge(&four, &queue).await;
}

/// A process that dies during a change leaves closed partitions.
#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_change_is_undone_by_the_next_call() {
    for topology in [Topology::Server, Topology::Cluster] {
        for shards in [None, Some(4)] {
            let queue = queue();
            let user = process(topology, &queue, shards).await;
            user.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
            purge(&user, &queue).await;
            let tags = match shards {
                None => vec!["dq".to_owned()],
                Some(shards) => (0..shards).map(|n| format!("dq#{shards}.{n}")).collect(),
            };
            // Step 1 of change 2 closes a partition with this marker: see
            // scripts/library/access.lua.
            for tag in &tags {
                let leases = format!("{{{tag}}}:lease:{queue}");
                let marker = ["ZADD", &leases, "-inf", "closed by change 2"];
                server_of(topology, &leases).command(&marker);
            }
            let jobs = keyed(&queue, 30);
            let answers = user.schedule(jobs).await.unwrap();
            assert!(answers.iter().all(Scheduled::is_stored), "{answers:?}");
            let other = process(topology, &queue, None).await;
            let taken = claim(&other, &queue, 100).await;
            assert_eq!(taken.len(), 30);
            settle(&user, &taken, &Verdict::Done).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_layout_that_cannot_be_parsed_is_refused() {
    let queue = queue();
    shared_redis().command(&["HSET", &format!("{{dq}}:meta:{queue}"), "layout", "1:4"]);
    let four = process(Topology::Server, &queue, Some(4)).await;
    let error = four.schedule(vec![job(&queue, None, HOUR)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("\"1:4\"") && error.remedy_text().is_some(), "{error}");
}
