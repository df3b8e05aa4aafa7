//! Foreign data under the backend's keys is quarantined and reported, and stops no job.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{
    Cancelled, DeadKind, Due, ErrorKind, JobRef, JobState, OnConflict, Operation, Scheduled,
    Settled, Settlement, Severity, Verdict,
};
use dq_servers::Redis;

use crate::common::{ForeignKey, by_key, dead, list, purge, replay_all};
use crate::faults::fixture::{
    assert_error, by_id, claim, claim_for, done_settlements, found, in_an_hour, job, keyed, open,
    queue, stats,
};

const KINDS: [&str; 13] = [
    "due", "job", "state", "lease", "key", "dead", "reason", "meta", "stray", "ended", "past",
    "unpin", "pin",
];
const HASHES: [&str; 7] = ["job", "state", "key", "reason", "meta", "past", "pin"];

fn key(kind: &str) -> String {
    format!("{{dq}}:{kind}:q")
}

#[tokio::test]
async fn a_key_of_another_type_stops_only_its_queue() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    for kind in ["due", "job", "state", "lease", "meta"] {
        backend.schedule(vec![job("q"), keyed("q", "k")]).await.unwrap();
        let foreign = ForeignKey::replace(&redis, &key(kind));
        for _ in 0..3 {
            backend.schedule(vec![job("well")]).await.unwrap();
            let claimed = claim(&*backend, &["well", "q"], 9).await.unwrap();
            assert_eq!(claimed.jobs.len(), 1, "the other queue is served ({kind})");
            assert_eq!(claimed.jobs[0].job.losses, 0);
            backend.settle(&done_settlements(&claimed)).await.unwrap();
        }
        let words = ["WRONGTYPE", "queue q", "prefix"];
        assert_error(claim(&*backend, &["q"], 9).await, ErrorKind::Incompatible, &words);
        // New jobs have no state yet, so they can be stored.
        if kind != "state" {
            let answer = backend.schedule(vec![keyed("q", "other")]).await;
            assert_error(answer, ErrorKind::Incompatible, &["WRONGTYPE", "prefix"]);
        }
        let findings = backend.check().await;
        let finding = found(&findings, "redis.foreign-key");
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.cause.contains(&key(kind)), "{finding}");

        foreign.restore();
        let claimed = claim(&*backend, &["q"], 9).await.unwrap();
        assert_eq!(claimed.jobs.len(), 2, "nothing was lost and nothing half stored ({kind})");
        backend.settle(&done_settlements(&claimed)).await.unwrap();
    }
    assert!(!backend.check().await.iter().any(|found| found.code == "redis.foreign-key"));
}

#[tokio::test]
async fn a_key_of_another_type_ends_no_job_half_way() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    for kind in ["due", "job", "state", "key", "pin", "unpin"] {
        let waits = in_an_hour(keyed("q", "k"));
        backend.schedule(vec![waits.clone()]).await.unwrap();
        let foreign = ForeignKey::replace(&redis, &key(kind));
        let mut other = in_an_hour(keyed("q", "k"));
        other.on_conflict = OnConflict::Replace;
        let refused = backend.schedule(vec![job("q"), other]).await;
        assert_error(refused, ErrorKind::Incompatible, &["WRONGTYPE"]);
        let target = [by_id(&waits)];
        assert_error(backend.cancel(&target).await, ErrorKind::Incompatible, &["WRONGTYPE"]);
        let purge = backend.operate(Operation::Purge { queue: &queue("q") }).await;
        assert_error(purge, ErrorKind::Incompatible, &["WRONGTYPE"]);
        foreign.restore();
        let counts = stats(&*backend, "q").await;
        assert_eq!((counts.scheduled, counts.ready), (1, 0), "{kind}");
        assert_eq!(backend.cancel(&target).await.unwrap(), [Cancelled::Cancelled], "{kind}");
    }
    backend.schedule(vec![in_an_hour(job("q"))]).await.unwrap();
    let name = queue("q");
    for kind in ["dead", "reason"] {
        let foreign = ForeignKey::replace(&redis, &key(kind));
        let purge = backend.operate(Operation::Purge { queue: &name }).await;
        assert_error(purge, ErrorKind::Incompatible, &["WRONGTYPE"]);
        foreign.restore();
        assert_eq!(stats(&*backend, "q").await.scheduled, 1, "{kind}");
    }
    assert_eq!(purge(&*backend, &name).await, 1);
}

#[tokio::test]
async fn foreign_members_are_quarantined_and_reported() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let valid = job("q");
    backend.schedule(vec![valid.clone()]).await.unwrap();
    for (score, member) in [
        ("-inf", "no job"),
        ("1.5", "fourteen bytes"),
        ("0", ""),
        ("7", "a member that is longer than a handle"),
        ("+inf", "never"),
    ] {
        redis.command(&["ZADD", &key("due"), score, member]);
    }
    redis.command(&["HSET", &key("job"), "", "empty name", "unrelated", "field"]);
    let claimed = claim(&*backend, &["q"], 9).await.unwrap();
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(claimed.jobs[0].job.id, valid.id);
    // An entry with the score +inf counts as due in the distant future.
    let next = claim(&*backend, &["q"], 9).await.unwrap();
    assert!(next.jobs.is_empty() && next.next_due.unwrap() > next.now);
    assert!(list(&*backend, &queue("q"), JobState::Scheduled, 1).await.is_empty());

    let findings = backend.check().await;
    let finding = found(&findings, "redis.strays");
    assert!(finding.cause.starts_with("5 ") && finding.cause.contains("queue q"), "{finding}");
    assert!(finding.remedy.contains(&key("stray")), "{finding}");
    assert_eq!(redis.command(&["ZCARD", &key("stray")]).int(), 5);
    assert_eq!(redis.command(&["HGET", &key("job"), ""]).text(), "empty name", "kept as it was");
    redis.command(&["DEL", &key("stray")]);
    assert!(!backend.check().await.iter().any(|found| found.code == "redis.strays"));
}

#[tokio::test]
async fn a_malformed_record_becomes_a_dead_job_with_its_bytes() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    // Records: 6 bytes time, 2 bytes tail, flags (4: headers follow), header length, headers. The
    // first is valid; the second announces 9 header bytes but has 3.
    let handle = "abcdefghijklmn";
    let record = b"\0\0\0\0\0\x01\x07\x08\x04\0\0\0\x02{}}";
    redis.command_bytes(&[b"HSET", key("job").as_bytes(), handle.as_bytes(), record]);
    redis.command(&["ZADD", &key("due"), "0", handle]);
    let broken = b"\0\0\0\0\0\x01\x07\x08\x04\0\0\0\x09{}}";
    redis.command_bytes(&[b"HSET", key("job").as_bytes(), b"brokenrecord14", broken]);
    redis.command(&["ZADD", &key("due"), "0", "brokenrecord14"]);

    let claimed = claim(&*backend, &["q"], 9).await.unwrap();
    assert_eq!(claimed.jobs.len(), 2, "the scheduled job, and a foreign one with a valid record");
    let dead = list(&*backend, &queue("q"), JobState::Dead, 10).await;
    let [view] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!(view.job.payload, &broken[..], "the whole record");
    assert_eq!(view.dead.as_ref().unwrap().0.kind, DeadKind::Undecodable);
    let id = view.job.id;
    let [(job, reason)] = &claimed.quarantined[..] else { panic!("{claimed:?}") };
    assert_eq!((job.id, &job.payload), (id, &view.job.payload));
    assert_eq!(Some(reason), view.dead.as_ref().map(|(reason, _)| reason));
    let shown = backend.get(&JobRef::new(queue("q"), id)).await.unwrap();
    assert_eq!(shown.as_ref(), Some(view));
    let remove = Operation::Remove { queue: &queue("q"), jobs: &[id] };
    assert_eq!(backend.operate(remove).await.unwrap().affected, 1);
    assert_eq!(stats(&*backend, "q").await.dead, 0);
}

#[tokio::test]
async fn garbage_in_every_hash_and_set_stops_no_job() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let (first, second) = (keyed("q", "first"), job("q"));
    backend.schedule(vec![first.clone(), second.clone()]).await.unwrap();
    let lease = Duration::from_millis(20);
    assert_eq!(claim_for(&*backend, &["q"], 9, lease).await.unwrap().jobs.len(), 2);
    for kind in KINDS {
        let key = key(kind);
        if HASHES.contains(&kind) {
            redis.command(&["HSET", &key, "", "x", "fourteen bytes", "x", "garbage", "no job"]);
        } else {
            redis.command(&["ZADD", &key, "3", "", "4", "fourteen bytes", "5", "garbage"]);
        }
    }
    for state in redis.command(&["HKEYS", &key("state")]).list() {
        redis.command_bytes(&[b"HSET", key("state").as_bytes(), state.bytes(), b"short"]);
    }
    redis.command(&["HSET", &key("meta"), "token", "many", "done", "all", "created", "-1"]);
    tokio::time::sleep(lease).await;

    let counts = stats(&*backend, "q").await;
    assert!(counts.ready >= 2, "{counts:?}");
    let claimed = claim(&*backend, &["q"], 9).await.unwrap();
    let ids: HashSet<_> = claimed.jobs.iter().map(|leased| leased.job.id).collect();
    assert_eq!(ids, HashSet::from([first.id, second.id]));
    use JobState::{Dead, Ended, Ready, Running, Scheduled as Waiting};
    for state in [Waiting, Ready, Running, Dead, Ended] {
        list(&*backend, &queue("q"), state, 10).await;
    }
    let by_garbage = by_key(&queue("q"), "garbage");
    assert!(backend.get(&by_garbage).await.unwrap().is_none());
    backend.cancel(&[by_garbage]).await.unwrap();
    let answer = backend.schedule(vec![keyed("q", "garbage")]).await.unwrap();
    assert!(matches!(answer[..], [Scheduled::Created(_)]), "{answer:?}");
    assert!(backend.get(&by_id(&first)).await.unwrap().is_some());
    replay_all(&*backend, &queue("q")).await;
    purge(&*backend, &queue("q")).await;
    assert!(stats(&*backend, "q").await.running >= 2, "running jobs are not purged");
}

#[tokio::test]
async fn a_settlement_writes_nothing_if_it_meets_a_key_of_another_type() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    backend.schedule(vec![keyed("q", "first"), keyed("q", "second")]).await.unwrap();
    let leased = claim(&*backend, &["q"], 9).await.unwrap().jobs;
    for kind in ["dead", "reason", "due"] {
        let retry = || Verdict::retry(Due::After(Duration::from_secs(60)), "no");
        let foreign = ForeignKey::replace(&redis, &key(kind));
        let verdicts = [
            Settlement::new(leased[0].lease(), retry()),
            Settlement::new(leased[1].lease(), dead()),
        ];
        backend.settle(&verdicts).await.unwrap_err();
        foreign.restore();
        assert_eq!(stats(&*backend, "q").await.running, 2, "{kind}");
        assert_eq!(redis.command(&["ZCARD", &key("due")]).int(), 0, "{kind}");
    }
    let verdicts = [
        Settlement::new(leased[0].lease(), dead()),
        Settlement::new(leased[1].lease(), Verdict::retry(Due::NOW, "no")),
    ];
    assert_eq!(backend.settle(&verdicts).await.unwrap(), [Settled::Accepted; 2]);
    let counts = stats(&*backend, "q").await;
    assert_eq!((counts.running, counts.dead, counts.ready), (0, 1, 1));
}

#[tokio::test]
async fn no_job_is_lost_if_quarantine_is_impossible() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    backend.schedule(vec![job("q"), job("q")]).await.unwrap();
    let lease = Duration::from_millis(20);
    assert_eq!(claim_for(&*backend, &["q"], 9, lease).await.unwrap().jobs.len(), 2);
    let handles = redis.command(&["ZRANGE", &key("lease"), "0", "0"]);
    redis.command_bytes(&[b"HDEL", key("job").as_bytes(), handles.list()[0].bytes()]);
    redis.command(&["SET", &key("stray"), "something else"]);
    redis.command(&["HSET", &key("meta"), "done", "many"]);
    tokio::time::sleep(lease).await;
    assert_error(claim(&*backend, &["q"], 9).await, ErrorKind::Incompatible, &["WRONGTYPE"]);
    redis.command(&["DEL", &key("stray")]);
    let claimed = claim(&*backend, &["q"], 9).await.unwrap();
    assert_eq!((claimed.jobs.len(), claimed.jobs[0].job.losses), (1, 1));
    backend.settle(&done_settlements(&claimed)).await.unwrap();
    assert_eq!(stats(&*backend, "q").await.totals.unwrap().done, 1, "the total starts again");
}

#[tokio::test]
async fn a_score_that_is_no_whole_number_is_rounded() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let scores = ["+inf", "1e19", "2e19", "9000000000000.5", "9000000000000.25"];
    let jobs = scores.map(|_| in_an_hour(job("q")));
    backend.schedule(jobs.to_vec()).await.unwrap();
    let handles = redis.command(&["ZRANGE", &key("due"), "0", "-1"]);
    for (handle, score) in handles.list().iter().zip(scores) {
        redis.command_bytes(&[b"ZADD", key("due").as_bytes(), score.as_bytes(), handle.bytes()]);
    }
    let listed = list(&*backend, &queue("q"), JobState::Scheduled, 1).await;
    let ids: HashSet<_> = listed.iter().map(|view| view.job.id).collect();
    assert_eq!((listed.len(), ids.len()), (5, 5), "each once");
}
