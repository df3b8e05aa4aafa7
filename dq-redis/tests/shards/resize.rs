//! The number of shards changes while there are jobs in every state.

use std::collections::{HashMap, HashSet};

use dq_core::{
    Backend, Cancelled, DeadKind, DeadReason, Due, JobId, JobRef, JobState, OnConflict, Operation,
    Renewal, Renewed, Reschedule, Rescheduled, Scheduled, Settled, Settlement, Verdict,
};
use dq_redis::RedisBackend;

use crate::rig::{LATER, Place, by_key, claim, ids, job, list, process, queue, settle};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_a_server() {
    nothing_is_lost(Place::Server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_a_cluster() {
    nothing_is_lost(Place::Cluster).await;
}

/// From one shard to four to two, with processes of before that go on.
async fn nothing_is_lost(place: Place) {
    let queue = queue();
    let one = process(place, &queue, None).await;
    let mut known: HashSet<JobId> = HashSet::new();
    let mut keys: HashMap<String, JobId> = HashMap::new();
    fill(&one, &queue, "one", &mut known, &mut keys).await;
    let held_by_one = claim(&one, &queue, 20).await;

    let four = process(place, &queue, Some(4)).await;
    all_is_seen(&four, &queue, &keys).await;
    fill(&four, &queue, "four", &mut known, &mut keys).await;
    let held_by_four = claim(&four, &queue, 20).await;
    // It has not heard of the change so far.
    all_is_seen(&one, &queue, &keys).await;
    fill(&one, &queue, "one again", &mut known, &mut keys).await;

    let two = process(place, &queue, Some(2)).await;
    fill(&two, &queue, "two", &mut known, &mut keys).await;
    for process in [&one, &four, &two] {
        all_is_seen(process, &queue, &keys).await;
        let stats = &process.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
        assert_eq!((stats.live(), stats.running), (known.len() as u64, 40), "{stats:?}");
        assert_eq!(stats.adds_up(), Some(true), "{stats:?}");
    }

    // Leases are renewed and ended by those who took them, and by others.
    let renewal = |lease| Renewal { lease, lease_for: LATER * 2 };
    let renewals: Vec<_> =
        held_by_one.iter().chain(&held_by_four).map(|leased| renewal(leased.lease())).collect();
    for process in [&one, &two] {
        let answers = process.renew(&renewals).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Renewed::Until(_))), "{answers:?}");
    }
    settle(&one, &held_by_one, &Verdict::Done).await;
    settle(&two, &held_by_four[..10], &Verdict::Done).await;
    settle(&four, &held_by_four[10..], &Verdict::Retry(Due::NOW)).await;
    let stale = Settlement { lease: held_by_one[0].lease(), verdict: Verdict::Done };
    assert_eq!(two.settle(&[stale]).await.unwrap(), [Settled::Stale]);
    for done in ids(&held_by_one).iter().chain(&ids(&held_by_four[..10])) {
        assert!(known.remove(done));
    }

    // By key and by id, whatever the layout was when the job was stored.
    let waiting: Vec<_> = list(&two, &queue, JobState::Scheduled, 7).await;
    let gone = &waiting[0].job;
    let gone = [JobRef::new(queue.clone(), gone.id)];
    assert_eq!(four.cancel(&gone).await.unwrap(), [Cancelled::Cancelled]);
    assert!(known.remove(&waiting[0].job.id));
    for view in &waiting[1..] {
        let moved = Reschedule { job: JobRef::new(queue.clone(), view.job.id), due: Due::NOW };
        let answer = one.reschedule(&[moved]).await.unwrap();
        assert!(matches!(answer[..], [Rescheduled::Moved(_)]), "{answer:?}");
    }

    let mut drained = HashSet::new();
    for process in [&one, &four, &two].into_iter().cycle() {
        let taken = claim(process, &queue, 37).await;
        if taken.is_empty() {
            break;
        }
        settle(process, &taken, &Verdict::Done).await;
        for id in ids(&taken) {
            assert!(drained.insert(id), "leased twice");
        }
    }
    assert_eq!(drained, known, "each job came once");
    let stats = &one.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
    assert_eq!((stats.stored(), stats.adds_up()), (0, Some(true)), "{stats:?}");
}

/// Stores jobs with keys and without, due now and later; those that are there already are kept.
async fn fill(
    process: &RedisBackend,
    queue: &dq_core::QueueName,
    name: &str,
    known: &mut HashSet<JobId>,
    keys: &mut HashMap<String, JobId>,
) {
    let mut jobs = Vec::new();
    for n in 0..60 {
        let due = if n % 2 == 0 { Due::NOW } else { Due::After(LATER) };
        let key = format!("{name} {n}");
        jobs.push(job(queue, None, due));
        jobs.push(job(queue, Some(&key), due));
        keys.insert(key, jobs[jobs.len() - 1].id);
    }
    let answers = process.schedule(jobs.clone()).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Scheduled::Created(_))), "{answers:?}");
    known.extend(jobs.iter().map(|job| job.id));
    let answers = process.schedule(jobs).await.unwrap();
    assert!(answers.iter().all(|answer| !answer.is_stored()), "the same ids again: {answers:?}");
}

/// Every key's job is found by it, and holds it.
async fn all_is_seen(
    process: &RedisBackend,
    queue: &dq_core::QueueName,
    keys: &HashMap<String, JobId>,
) {
    for (key, id) in keys {
        let found = process.get(&by_key(queue, key)).await.unwrap().map(|view| view.job.id);
        assert_eq!(found, Some(*id), "{key}");
        let found = process.get(&JobRef::new(queue.clone(), *id)).await.unwrap();
        assert!(found.is_some(), "{key} by its id");
    }
    let rivals = keys.keys().map(|key| job(queue, Some(key), LATER)).collect();
    let answers = process.schedule(rivals).await.unwrap();
    for (answer, id) in answers.iter().zip(keys.values()) {
        assert!(!answer.is_stored() && answer.id() == *id, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replaced_stays_where_its_key_was() {
    let queue = queue();
    let one = process(Place::Server, &queue, None).await;
    let keys: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let jobs = || keys.iter().map(|key| job(&queue, Some(key), LATER));
    one.schedule(jobs().collect()).await.unwrap();
    let three = process(Place::Server, &queue, Some(3)).await;
    for process in [&three, &one, &three] {
        let replace = |job| dq_core::NewJob { on_conflict: OnConflict::Replace, ..job };
        let answers = process.schedule(jobs().map(replace).collect()).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Scheduled::Replaced(_))));
    }
    let cancelled = three
        .cancel(&keys.iter().map(|key| by_key(&queue, key)).collect::<Vec<_>>())
        .await
        .unwrap();
    assert_eq!(cancelled, vec![Cancelled::Cancelled; 40]);
    assert!(list(&one, &queue, JobState::Scheduled, 100).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_holds_for_shards_that_come_later() {
    for place in [Place::Server, Place::Cluster] {
        let queue = queue();
        let one = process(place, &queue, None).await;
        one.schedule(vec![job(&queue, None, Due::NOW)]).await.unwrap();
        one.operate(Operation::Pause { queue: &queue }).await.unwrap();
        let four = process(place, &queue, Some(4)).await;
        four.schedule((0..40).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
        for process in [&one, &four] {
            assert!(claim(process, &queue, 100).await.is_empty(), "paused in all shards");
        }
        let resumed = one.operate(Operation::Resume { queue: &queue }).await.unwrap();
        assert_eq!(resumed.affected, 1, "one queue");
        assert_eq!(claim(&one, &queue, 100).await.len(), 41);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_jobs_are_replayed_and_removed_wherever_they_are() {
    for place in [Place::Server, Place::Cluster] {
        let queue = queue();
        let mut buried = 0;
        let mut last = process(place, &queue, None).await;
        for (shards, name) in [(None, "a"), (Some(4), "b"), (Some(3), "c")] {
            let process = process(place, &queue, shards).await;
            let keyed = (0..20).map(|n| job(&queue, Some(&format!("{name}{n}")), Due::NOW));
            process.schedule(keyed.collect()).await.unwrap();
            process.schedule((0..20).map(|_| job(&queue, None, Due::NOW)).collect()).await.unwrap();
            let taken = claim(&process, &queue, 100).await;
            buried += taken.len();
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            settle(&process, &taken, &Verdict::Dead { reason, failed: true }).await;
            last = process;
        }
        assert_eq!(buried, 120);
        // These keys are live again, so their dead jobs stay dead.
        let taken = ["a3", "b4", "c5"];
        let again = taken.map(|key| job(&queue, Some(key), LATER)).to_vec();
        assert!(last.schedule(again).await.unwrap().iter().all(Scheduled::is_stored));
        let dead = list(&last, &queue, JobState::Dead, 9).await;
        assert_eq!(dead.len(), 120);
        let some: Vec<_> = dead.iter().step_by(10).map(|view| view.job.id).collect();
        let removed = last.operate(Operation::Remove { queue: &queue, jobs: Some(&some) }).await;
        assert_eq!(removed.unwrap().affected, 12);
        let is_gone = |view: &&dq_core::JobView| !some.contains(&view.job.id);
        let left: Vec<_> = dead.iter().filter(is_gone).collect();
        let stays = |view: &&&dq_core::JobView| {
            view.job.key.as_ref().is_some_and(|key| taken.contains(&key.as_str()))
        };
        let stay = left.iter().filter(stays).count();
        let replay = Operation::Replay { queue: &queue, jobs: None, due: Due::NOW };
        let replayed = last.operate(replay).await.unwrap().affected;
        assert_eq!(replayed, (left.len() - stay) as u64);
        let stats = &last.stats(std::slice::from_ref(&queue)).await.unwrap()[0];
        assert_eq!((stats.ready, stats.dead), (replayed, stay as u64));
        let purged = last.operate(Operation::Purge { queue: &queue }).await.unwrap().affected;
        assert_eq!(purged, replayed + stay as u64 + 3);
        assert_eq!(last.stats(std::slice::from_ref(&queue)).await.unwrap()[0].stored(), 0);
    }
}
