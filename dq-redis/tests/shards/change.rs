//! The number of shards of a queue changes when its first call finds it empty, and never otherwise.

use dq_core::{
    Backend, ClaimParams, DeadKind, DeadReason, Due, JobState, Operation, QueueName, Settled,
    Settlement, Verdict, Want,
};
use dq_servers::{Redis, shared_redis};

use crate::fixture::{
    LATER, Topology, assert_refused, by_key, claim, cluster, job, list, process, queue, settle,
};

/// The server that has a key.
fn server_of(topology: Topology, key: &str) -> &'static Redis {
    match topology {
        Topology::Server => shared_redis(),
        Topology::Cluster => cluster().owner(key),
    }
}

/// A waiting, a leased and a dead job each prevent a change, whether the queue has shards or not.
/// `first` has the stored number in its settings, `other` another.
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
            assert_every_call_is_refused(&other, &queue, stored, setting).await;
            let taken = claim(&first, &queue, 9).await;
            assert_every_call_is_refused(&other, &queue, stored, setting).await;
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            settle(&first, &taken, &Verdict::Dead { reason, failed: true }).await;
            assert_every_call_is_refused(&other, &queue, stored, setting).await;

            let dead = list(&first, &queue, JobState::Dead, 9).await;
            assert_eq!(dead.len(), 1, "nothing is lost");
            assert_eq!(dead[0].job.id, new.id);
            let stats = &first.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
            assert_eq!((stats.stored(), stats.adds_up()), (1, Some(true)), "{stats:?}");
            first.operate(Operation::Purge { queue: &queue }).await.unwrap();
            assert!(claim(&other, &queue, 9).await.is_empty(), "now the queue is empty");
        }
    }
}

/// Asserts that calls of a process with another number in its settings fail, and that `check` says
/// why.
async fn assert_every_call_is_refused(
    other: &dq_redis::RedisBackend,
    queue: &QueueName,
    stored: u16,
    setting: u16,
) {
    let refused = |answer| assert_refused(answer, queue, stored, setting);
    refused(other.schedule(vec![job(queue, Some("k"), LATER)]).await.map(drop));
    refused(other.cancel(&[by_key(queue, "k")]).await.map(drop));
    refused(other.get(&by_key(queue, "k")).await.map(drop));
    refused(other.stats(std::slice::from_ref(queue)).await.map(drop));
    refused(other.operate(Operation::Purge { queue }).await.map(drop));
    let wants = [Want { queue: queue.clone(), max: 9, lease_for: LATER }];
    let params = ClaimParams { wants: &wants, limit: 9, worker: "test" };
    refused(other.claim(params).await.map(drop));
    let findings = other.check().await;
    let finding = findings
        .iter()
        .find(|found| found.code == "redis.queue-unusable" && found.cause.contains(queue.as_str()));
    assert!(finding.is_some_and(|found| found.remedy.contains("[[drain]]")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_queue_does_not_affect_other_queues_of_a_claim() {
    for topology in [Topology::Server, Topology::Cluster] {
        let (refused, served) = (queue(), queue());
        let plain = process(topology, &refused, None).await;
        plain.schedule(vec![job(&refused, None, Due::NOW)]).await.unwrap();
        plain.schedule(vec![job(&served, None, Due::NOW)]).await.unwrap();
        let four = process(topology, &refused, Some(4)).await;
        let wants = [&refused, &served].map(|queue| Want {
            queue: queue.clone(),
            max: 9,
            lease_for: LATER,
        });
        let params = ClaimParams { wants: &wants, limit: 9, worker: "test" };
        let claimed = four.claim(params).await.unwrap();
        assert_eq!(claimed.jobs.len(), 1);
        assert_eq!(claimed.jobs[0].job.queue, served);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_queue_takes_the_number_of_the_settings() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        // Without a number in its settings, it uses the one that the others store.
        let follower = process(topology, &queue, None).await;
        let mut ended = Vec::new();
        for shards in [None, Some(4), Some(2), Some(1), Some(4), Some(3)] {
            let process = process(topology, &queue, shards).await;
            let jobs: Vec<_> =
                (0..30).map(|n| job(&queue, Some(&n.to_string()), Due::NOW)).collect();
            let answers = process.schedule(jobs.clone()).await.unwrap();
            assert!(answers.iter().all(dq_core::Scheduled::is_stored), "{shards:?}: {answers:?}");
            let kept = follower.schedule(jobs).await.unwrap();
            assert!(kept.iter().all(|answer| !answer.is_stored()), "{shards:?}: {kept:?}");
            let taken = claim(&follower, &queue, 100).await;
            assert_eq!(taken.len(), 30, "{shards:?}");
            settle(&process, &taken, &Verdict::Done).await;
            // These leases have ended, and are stale after each further change.
            let again = taken
                .iter()
                .map(|leased| Settlement { lease: leased.lease(), verdict: Verdict::Done })
                .collect::<Vec<_>>();
            ended.extend(again);
            let answers = follower.settle(&ended).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == Settled::Stale));
            let stats = &follower.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
            assert_eq!((stats.stored(), stats.adds_up()), (0, Some(true)), "{stats:?}");
        }
    }
}

/// A process changes the number once. When another process has changed it since, its calls fail, so
/// that two settings do not change the number in turns.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_does_not_change_the_number_back() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let four = process(topology, &queue, Some(4)).await;
        four.stats(std::slice::from_ref(&queue)).await.unwrap();
        let two = process(topology, &queue, Some(2)).await;
        two.stats(std::slice::from_ref(&queue)).await.unwrap();
        for _ in 0..3 {
            assert_refused(four.schedule(vec![job(&queue, None, LATER)]).await, &queue, 2, 4);
            two.stats(std::slice::from_ref(&queue)).await.unwrap();
        }
        two.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
        two.operate(Operation::Purge { queue: &queue }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_stays_paused_when_the_number_changes() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let one = process(topology, &queue, None).await;
        one.operate(Operation::Pause { queue: &queue }).await.unwrap();
        for shards in [4, 2] {
            let process = process(topology, &queue, Some(shards)).await;
            let jobs = (0..20).map(|_| job(&queue, None, Due::NOW)).collect();
            process.schedule(jobs).await.unwrap();
            for process in [&one, &process] {
                assert!(claim(process, &queue, 100).await.is_empty(), "paused in all shards");
            }
            process.operate(Operation::Purge { queue: &queue }).await.unwrap();
        }
        let resumed = one.operate(Operation::Resume { queue: &queue }).await.unwrap();
        assert_eq!(resumed.affected, 1, "one queue");
        let four = process(topology, &queue, Some(4)).await;
        four.schedule((0..20).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
        assert_eq!(claim(&one, &queue, 100).await.len(), 20, "not paused by the first change");
    }
}

/// A process that dies in a change leaves closed partitions, which the next call opens.
#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_change_is_undone_by_the_next_call() {
    for topology in [Topology::Server, Topology::Cluster] {
        for shards in [None, Some(4)] {
            let queue = queue();
            let user = process(topology, &queue, shards).await;
            user.stats(std::slice::from_ref(&queue)).await.unwrap();
            let tags = match shards {
                None => vec!["dq".to_owned()],
                Some(shards) => (0..shards).map(|n| format!("dq#{shards}.{n}")).collect(),
            };
            // The marker by which step 1 of change 2 closes a partition: see scripts/prelude.lua.
            for tag in &tags {
                let leases = format!("{{{tag}}}:lease:{queue}");
                let marker = ["ZADD", &leases, "-inf", "closed by change 2"];
                server_of(topology, &leases).command(&marker);
            }
            let jobs: Vec<_> =
                (0..30).map(|n| job(&queue, Some(&n.to_string()), Due::NOW)).collect();
            let answers = user.schedule(jobs).await.unwrap();
            assert!(answers.iter().all(dq_core::Scheduled::is_stored), "{answers:?}");
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
    let meta = format!("{{dq}}:meta:{queue}");
    shared_redis().command(&["HSET", &meta, "layout", "1:4"]);
    let four = process(Topology::Server, &queue, Some(4)).await;
    let error = four.schedule(vec![job(&queue, None, LATER)]).await.unwrap_err();
    assert_eq!(error.kind(), dq_core::ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("\"1:4\"") && error.remedy_text().is_some(), "{error}");
}
