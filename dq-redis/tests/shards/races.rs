//! Processes with different shard counts use one queue at the same time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dq_core::{
    Backend, Cancelled, Due, ErrorKind, JobKey, OnConflict, Operation, QueueName, Scheduled,
};
use dq_redis::RedisBackend;

use crate::common::{HOUR, by_key, dead, purge};
use crate::shards::fixture::{Topology, claim, job, live_by_key, process, queue, settle, stats};

const KEYS: usize = 60;
const ROUNDS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_live_once_on_a_server_and_a_cluster() {
    tokio::join!(a_key_is_live_once(Topology::Server), a_key_is_live_once(Topology::Cluster));
}

/// Processes begin to schedule the same keys in an empty queue. One count wins, processes with
/// another count get errors, and each key is created once.
async fn a_key_is_live_once(topology: Topology) {
    let queue = queue();
    let observer = process(topology, &queue, None).await;
    for round in 0..ROUNDS {
        let settings = [None, None, Some(4), Some(2), Some(1)];
        let producers = settings.into_iter().enumerate().map(|(number, shards)| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let process = process(topology, &queue, shards).await;
                let mut created: Vec<JobKey> = Vec::new();
                for turn in 0..KEYS {
                    // Each process is the first for some keys.
                    let n = (turn + number * 13) % KEYS;
                    let on_conflict =
                        if n.is_multiple_of(3) { OnConflict::Replace } else { OnConflict::Keep };
                    let new = job(&queue, Some(&format!("k{n}")), HOUR);
                    let key = new.key.clone().unwrap();
                    match process.schedule(vec![new.on_conflict(on_conflict)]).await {
                        Ok(answers) => match answers[0] {
                            Scheduled::Created(_) => created.push(key),
                            Scheduled::Replaced(_) | Scheduled::Kept(_) => {}
                            other => panic!("nothing runs or has ended here: {other:?}"),
                        },
                        Err(error) => {
                            assert!(shards.is_some(), "without a number: {error}");
                            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                        }
                    }
                }
                created
            })
        });
        let producers: Vec<_> = producers.collect();
        let mut created: HashMap<JobKey, usize> = HashMap::new();
        for producer in producers {
            for key in producer.await.unwrap() {
                *created.entry(key).or_default() += 1;
            }
        }
        assert_eq!(created.len(), KEYS, "round {round}");
        assert!(created.values().all(|times| *times == 1), "round {round}: {created:?}");
        let live = live_by_key(&observer, &queue).await;
        assert_eq!(live.len(), KEYS, "none is lost");
        assert!(live.values().all(|jobs| *jobs == 1), "round {round}: {live:?}");
        let stats = stats(&observer, &queue).await;
        assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
        assert_eq!(purge(&observer, &queue).await, KEYS as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_live_once_while_the_number_changes_on_a_server_and_a_cluster() {
    tokio::join!(
        a_key_is_live_once_while_the_number_changes(Topology::Server),
        a_key_is_live_once_while_the_number_changes(Topology::Cluster)
    );
}

const CHANGES: usize = 12;

/// Processes schedule and cancel jobs with one key. In between, the queue is empty, and new
/// processes change its count. From a job's creation to its cancel, no other process can create
/// one, and the job is found.
async fn a_key_is_live_once_while_the_number_changes(topology: Topology) {
    let queue = queue();
    let holders = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..3)
        .map(|_| {
            let (queue, holders, stop) = (queue.clone(), Arc::clone(&holders), Arc::clone(&stop));
            tokio::spawn(async move {
                let process = process(topology, &queue, None).await;
                let mut turns = 0;
                while !stop.load(Ordering::Relaxed) {
                    turns += usize::from(hold_key(&process, &queue, &holders).await.unwrap());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                turns
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(600);
    for (number, shards) in [3, 1, 5, 2].into_iter().cycle().take(CHANGES).enumerate() {
        let changer = process(topology, &queue, Some(shards)).await;
        let mut turns = 0;
        while turns < 5 {
            assert!(Instant::now() < deadline, "change {number} does not succeed");
            match hold_key(&changer, &queue, &holders).await {
                Ok(created) => turns += usize::from(created),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Config, "{error}"),
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        assert!(user.await.unwrap() > 0);
    }
    let observer = process(topology, &queue, None).await;
    let stats = stats(&observer, &queue).await;
    assert_eq!((stats.stored(), stats.adds_up()), (0, Some(true)), "{stats:?}");
}

/// `holders` counts the processes between creating and cancelling. Returns whether this call
/// created a job.
async fn hold_key(
    process: &RedisBackend,
    queue: &QueueName,
    holders: &AtomicUsize,
) -> dq_core::Result<bool> {
    let new = job(queue, Some("key"), HOUR);
    let answer = process.schedule(vec![new.clone()]).await?[0];
    if !matches!(answer, Scheduled::Created(_)) {
        assert!(matches!(answer, Scheduled::Kept(_)), "{answer:?}");
        return Ok(false);
    }
    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "the key is live twice");
    let view = process.get(&by_key(queue, "key")).await.unwrap();
    assert_eq!(view.map(|view| view.job.id), Some(new.id), "the job is lost");
    holders.fetch_sub(1, Ordering::SeqCst);
    let cancelled = process.cancel(&[by_key(queue, "key")]).await.unwrap();
    assert_eq!(cancelled, [Cancelled::Cancelled], "the job is lost");
    Ok(true)
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_race_with_producers_on_a_server_and_a_cluster() {
    tokio::join!(
        replays_race_with_producers(Topology::Server),
        replays_race_with_producers(Topology::Cluster)
    );
}

async fn replays_race_with_producers(topology: Topology) {
    let queue = queue();
    let three = process(topology, &queue, Some(3)).await;
    for _ in 0..2 {
        let jobs = (0..KEYS).map(|n| job(&queue, Some(&format!("k{n}")), Due::NOW));
        three.schedule(jobs.collect()).await.unwrap();
        let taken = claim(&three, &queue, KEYS).await;
        assert_eq!(taken.len(), KEYS);
        settle(&three, &taken, &dead()).await;
    }
    let create = async |keys: std::ops::Range<usize>| {
        let mut created = 0;
        for n in keys {
            let new = job(&queue, Some(&format!("k{n}")), HOUR);
            created += u64::from(three.schedule(vec![new]).await.unwrap()[0].is_stored());
        }
        created
    };
    // Both sides get some keys: some are taken before the replays begin, and one is left.
    let mut created = create(0..KEYS / 3).await;
    let operators = [None, Some(3)].map(|shards| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let process = process(topology, &queue, shards).await;
            let replay = Operation::Replay {
                queue: &queue,
                jobs: &dq_testkit::fixture::dead_ids(&process, &queue).await[..],
                due: HOUR.into(),
            };
            process.operate(replay).await.unwrap().affected
        })
    });
    created += create(KEYS / 3..KEYS - 1).await;
    let mut replayed = 0;
    for operator in operators {
        replayed += operator.await.unwrap();
    }
    created += create(KEYS - 1..KEYS).await;
    let live = live_by_key(&three, &queue).await;
    let twice: Vec<_> = live.iter().filter(|(_, jobs)| **jobs > 1).collect();
    assert!(twice.is_empty(), "live more than once: {twice:?}");
    assert_eq!((live.len(), created + replayed), (KEYS, KEYS as u64), "each key, once");
    assert!(replayed > 0 && created > 0, "both took part: {created} and {replayed}");
    let stats = stats(&three, &queue).await;
    assert_eq!(stats.dead, 2 * KEYS as u64 - replayed, "{stats:?}");
}
