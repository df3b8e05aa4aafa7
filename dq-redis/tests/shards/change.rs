//! The number of shards of a queue changes when a call stores jobs in it while it is empty, and
//! never otherwise. All other calls use the stored number.

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
            assert_only_schedule_is_refused(&other, &queue, stored, setting).await;
            let taken = claim(&first, &queue, 9).await;
            assert_only_schedule_is_refused(&other, &queue, stored, setting).await;
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            settle(&first, &taken, &Verdict::Dead { reason, failed: true }).await;
            assert_only_schedule_is_refused(&other, &queue, stored, setting).await;

            let dead = list(&first, &queue, JobState::Dead, 9).await;
            assert_eq!(dead.len(), 1, "nothing is lost");
            assert_eq!(dead[0].job.id, new.id);
            let stats = &first.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
            assert_eq!((stats.stored(), stats.adds_up()), (1, Some(true)), "{stats:?}");
            first.operate(Operation::Purge { queue: &queue }).await.unwrap();
            let answers = other.schedule(vec![job(&queue, Some("k"), LATER)]).await.unwrap();
            assert!(answers[0].is_stored(), "now the queue is empty");
            other.operate(Operation::Purge { queue: &queue }).await.unwrap();
        }
    }
}

/// Asserts that a process with another number in its settings cannot store jobs, that `check` says
/// why, and that its other calls see the one job of the queue.
async fn assert_only_schedule_is_refused(
    other: &dq_redis::RedisBackend,
    queue: &QueueName,
    stored: u16,
    setting: u16,
) {
    let answer = other.schedule(vec![job(queue, Some("k"), LATER)]).await;
    assert_refused(answer.map(drop), queue, stored, setting);
    let stats = &other.stats(std::slice::from_ref(queue)).await.unwrap()[0];
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

/// A runner with another number in its settings serves the jobs that are there, so that the queue
/// becomes empty and its number can change.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_another_number_claims_the_jobs_that_wait() {
    for topology in [Topology::Server, Topology::Cluster] {
        let (sharded, plain_queue) = (queue(), queue());
        let plain = process(topology, &sharded, None).await;
        plain.schedule(vec![job(&sharded, None, Due::NOW)]).await.unwrap();
        plain.schedule(vec![job(&plain_queue, None, Due::NOW)]).await.unwrap();
        let four = process(topology, &sharded, Some(4)).await;
        let wants = [&sharded, &plain_queue].map(|queue| Want {
            queue: queue.clone(),
            max: 9,
            lease_for: LATER,
        });
        let params = ClaimParams { wants: &wants, limit: 9, worker: "test" };
        let claimed = four.claim(params).await.unwrap();
        assert_eq!(claimed.jobs.len(), 2);
        settle(&four, &claimed.jobs, &Verdict::Done).await;
        let answers = four.schedule(vec![job(&sharded, None, LATER)]).await.unwrap();
        assert!(answers[0].is_stored());
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

/// A process changes the number once. When another process has changed it since, the first one
/// cannot store jobs, so that two settings do not change the number in turns.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_does_not_change_the_number_back() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let four = process(topology, &queue, Some(4)).await;
        let two = process(topology, &queue, Some(2)).await;
        for process in [&four, &two] {
            process.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
            process.operate(Operation::Purge { queue: &queue }).await.unwrap();
        }
        for _ in 0..3 {
            assert_refused(four.schedule(vec![job(&queue, None, LATER)]).await, &queue, 2, 4);
            four.stats(std::slice::from_ref(&queue)).await.unwrap();
        }
        two.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
        two.operate(Operation::Purge { queue: &queue }).await.unwrap();
    }
}

/// Reading calls do not change the number, so that a tool with other settings disturbs nobody.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_store_nothing_do_not_change_the_number() {
    for topology in [Topology::Server, Topology::Cluster] {
        let queue = queue();
        let four = process(topology, &queue, Some(4)).await;
        four.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
        four.operate(Operation::Purge { queue: &queue }).await.unwrap();
        let tool = process(topology, &queue, Some(2)).await;
        tool.stats(std::slice::from_ref(&queue)).await.unwrap();
        tool.check().await;
        assert!(claim(&tool, &queue, 9).await.is_empty());
        four.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
        assert_refused(tool.schedule(vec![job(&queue, None, LATER)]).await, &queue, 4, 2);
        four.operate(Operation::Purge { queue: &queue }).await.unwrap();
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
        one.operate(Operation::Purge { queue: &queue }).await.unwrap();

        let resumed = four.operate(Operation::Resume { queue: &queue }).await.unwrap();
        assert_eq!(resumed.affected, 1, "one queue");
        four.schedule((0..20).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
        assert_eq!(claim(&one, &queue, 100).await.len(), 20);
    }
}

/// A process that dies in a change leaves closed partitions, which the next call opens.
#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_change_is_undone_by_the_next_call() {
    for topology in [Topology::Server, Topology::Cluster] {
        for shards in [None, Some(4)] {
            let queue = queue();
            let user = process(topology, &queue, shards).await;
            user.schedule(vec![job(&queue, None, LATER)]).await.unwrap();
            user.operate(Operation::Purge { queue: &queue }).await.unwrap();
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
