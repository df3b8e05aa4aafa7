//! A key is live at most once, whatever layouts processes believe in.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dq_core::{
    Backend, DeadKind, DeadReason, Due, JobKey, NewJob, OnConflict, Operation, QueueName,
    Scheduled, Verdict,
};
use dq_redis::RedisBackend;

use crate::rig::{LATER, Place, claim, job, live_by_key, process, queue, settle};

const KEYS: usize = 150;

/// Changes of the layout in one race.
const CHANGES: usize = 40;

/// So many changes make a race.
const ENOUGH: usize = 11;

/// What has not changed within this time does not change.
const BOUND: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn processes_race_for_keys_on_a_server() {
    race(Place::Server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_race_for_keys_on_a_cluster() {
    race(Place::Cluster).await;
}

/// Producers of four settings want the same keys at once, while others change the layout.
async fn race(place: Place) {
    let queue = queue();
    // So that the queue is one that had a single shard.
    let first = process(place, &queue, None).await;
    first.schedule(vec![job(&queue, Some("first"), LATER)]).await.unwrap();
    let changers = changers(place, &queue).await;
    let over = Arc::new(AtomicBool::new(false));
    let changed = Arc::new(AtomicUsize::new(0));
    let changes = change(changers, queue.clone(), Arc::clone(&over), Arc::clone(&changed));
    let changes = tokio::spawn(changes);
    let producers = [(0, None), (1, None), (2, Some(4)), (3, Some(2))].map(|(number, shards)| {
        let (queue, changed) = (queue.clone(), Arc::clone(&changed));
        tokio::spawn(async move {
            let process = process(place, &queue, shards).await;
            let mut created: HashMap<JobKey, usize> = HashMap::new();
            let deadline = Instant::now() + BOUND;
            for turn in 0.. {
                // All keys, and round again until there are changes enough.
                let enough = || changed.load(Ordering::Relaxed) >= ENOUGH;
                if turn >= KEYS && (enough() || Instant::now() > deadline) {
                    break;
                }
                // Each is the first with some keys, and all soon meet.
                let n = (turn + number * 3) * 7 % KEYS;
                let policy =
                    if n.is_multiple_of(3) { OnConflict::Replace } else { OnConflict::Keep };
                let new = job(&queue, Some(&format!("k{n}")), LATER);
                let new = NewJob { on_conflict: policy, ..new };
                let key = new.key.clone().unwrap();
                match process.schedule(vec![new]).await.unwrap()[0] {
                    Scheduled::Created(_) => *created.entry(key).or_default() += 1,
                    Scheduled::Replaced(_) | Scheduled::Kept(_) => {}
                    Scheduled::AlreadyRunning(_) => panic!("nothing runs here"),
                }
            }
            created
        })
    });
    let mut created: HashMap<JobKey, usize> = HashMap::new();
    for producer in producers {
        for (key, times) in producer.await.unwrap() {
            *created.entry(key).or_default() += times;
        }
    }
    over.store(true, Ordering::Relaxed);
    changes.await.unwrap();
    let changed = changed.load(Ordering::Relaxed);
    assert!(changed >= ENOUGH, "the layout changed {changed} times meanwhile");

    let live = live_by_key(&first, &queue).await;
    let twice: Vec<_> = live.iter().filter(|(_, jobs)| **jobs > 1).collect();
    assert!(twice.is_empty(), "live more than once: {twice:?}");
    assert_eq!(live.len(), KEYS + 1, "none is lost");
    assert!(created.values().all(|times| *times == 1), "each key was created once: {created:?}");
    assert_eq!(created.len(), KEYS);
    let stats = &first.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
    assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
}

/// Processes that have connected, and that want other numbers of shards when they do something.
async fn changers(place: Place, queue: &QueueName) -> Vec<RedisBackend> {
    let mut changers = Vec::new();
    for shards in [3, 1, 5, 2, 4].into_iter().cycle().take(CHANGES) {
        changers.push(process(place, queue, Some(shards)).await);
    }
    changers
}

/// Changes the layout until all is over, and counts how often.
async fn change(
    changers: Vec<RedisBackend>,
    queue: QueueName,
    over: Arc<AtomicBool>,
    changed: Arc<AtomicUsize>,
) {
    for changer in &changers {
        if over.load(Ordering::Relaxed) {
            break;
        }
        changer.stats(std::slice::from_ref(&queue)).await.unwrap();
        changed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_race_with_producers_on_a_server() {
    replay_race(Place::Server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_race_with_producers_on_a_cluster() {
    replay_race(Place::Cluster).await;
}

/// Dead jobs of former layouts are replayed while their keys are scheduled anew.
async fn replay_race(place: Place) {
    let queue = queue();
    for shards in [None, Some(4)] {
        let process = process(place, &queue, shards).await;
        let jobs = (0..KEYS).map(|n| job(&queue, Some(&format!("k{n}")), Due::NOW));
        process.schedule(jobs.collect()).await.unwrap();
        let taken = claim(&process, &queue, KEYS).await;
        assert_eq!(taken.len(), KEYS);
        let reason = DeadReason::new(DeadKind::Rejected, "no");
        settle(&process, &taken, &Verdict::Dead { reason, failed: true }).await;
    }
    let three = process(place, &queue, Some(3)).await;
    three.stats(std::slice::from_ref(&queue)).await.unwrap();
    let create = async |keys: Range<usize>| {
        let mut created = 0;
        for n in keys {
            let new = job(&queue, Some(&format!("k{n}")), LATER);
            created += u64::from(three.schedule(vec![new]).await.unwrap()[0].is_stored());
        }
        created
    };
    // Some keys are taken before the replays begin and some are left until they have ended, so that both
    // sides have something, however the rest goes.
    let mut created = create(0..KEYS / 3).await;
    let operators = [None, Some(3)].map(|shards| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let process = process(place, &queue, shards).await;
            let replay = Operation::Replay { queue: &queue, jobs: None, due: LATER.into() };
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
    let stats = &three.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
    assert_eq!(stats.dead, 2 * KEYS as u64 - replayed, "{stats:?}");
}
