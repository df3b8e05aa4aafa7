//! Foreign data under the backend's keys is quarantined and reported, and stops no job.

use std::time::Duration;

use dq_core::{
    BrowseParams, Cancelled, DeadKind, DeadReason, Due, ErrorKind, JobKey, JobRef, JobState,
    OnConflict, Operation, Scheduled, Settled, Settlement, Severity, Verdict,
};
use dq_servers::Redis;

use crate::faults::fixture::{
    assert_error, by_id, claim, claim_for, done_settlements, found, in_an_hour, job, keyed, open,
    queue, stats,
};

/// A partition's keys; scripts/library/keys.lua describes their contents.
const KINDS: [&str; 13] = [
    "due", "job", "state", "lease", "key", "dead", "reason", "meta", "stray", "ended", "past",
    "unpin", "pin",
];
const HASHES: [&str; 7] = ["job", "state", "key", "reason", "meta", "past", "pin"];

fn key(kind: &str) -> String {
    format!("{{dq}}:{kind}:q")
}

/// Replaces a key by a string. Returns the name that the key has meanwhile, if there was one.
fn replace(redis: &Redis, kind: &str) -> Option<String> {
    let (original, copy) = (key(kind), format!("copy:{kind}"));
    let exists = redis.command(&["EXISTS", &original]).int() == 1;
    if exists {
        redis.command(&["RENAME", &original, &copy]);
    }
    redis.command(&["SET", &original, "something else"]);
    exists.then_some(copy)
}

fn restore(redis: &Redis, kind: &str, copy: Option<String>) {
    redis.command(&["DEL", &key(kind)]);
    if let Some(copy) = copy {
        redis.command(&["RENAME", &copy, &key(kind)]);
    }
}

fn dead() -> Verdict {
    Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"))
}

#[tokio::test]
async fn a_key_of_another_type_stops_only_its_queue() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    for kind in ["due", "job", "state", "lease", "meta"] {
        backend.schedule(vec![job("q"), keyed("q", "k")]).await.unwrap();
        let copy = replace(&redis, kind);
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
            let error = assert_error(answer, ErrorKind::Incompatible, &["WRONGTYPE", "prefix"]);
            assert!(!error.message().contains("script"), "{error}");
        }
        let findings = backend.check().await;
        let finding = found(&findings, "redis.foreign-key");
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.cause.contains(&key(kind)), "{finding}");

        restore(&redis, kind, copy);
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
        let copy = replace(&redis, kind);
        let mut other = in_an_hour(keyed("q", "k"));
        other.on_conflict = OnConflict::Replace;
        let refused = backend.schedule(vec![job("q"), other]).await;
        assert_error(refused, ErrorKind::Incompatible, &["WRONGTYPE"]);
        let target = [by_id(&waits)];
        assert_error(backend.cancel(&target).await, ErrorKind::Incompatible, &["WRONGTYPE"]);
        let name = queue("q");
        let purge = backend.operate(Operation::Purge { queue: &name }).await;
        assert_error(purge, ErrorKind::Incompatible, &["WRONGTYPE"]);
        restore(&redis, kind, copy);
        let counts = stats(&*backend, "q").await;
        assert_eq!((counts.scheduled, counts.ready), (1, 0), "{kind}");
        assert_eq!(backend.cancel(&target).await.unwrap(), [Cancelled::Cancelled], "{kind}");
    }
    backend.schedule(vec![in_an_hour(job("q"))]).await.unwrap();
    let name = queue("q");
    for kind in ["dead", "reason"] {
        let copy = replace(&redis, kind);
        let purge = backend.operate(Operation::Purge { queue: &name }).await;
        assert_error(purge, ErrorKind::Incompatible, &["WRONGTYPE"]);
        restore(&redis, kind, copy);
        assert_eq!(stats(&*backend, "q").await.scheduled, 1, "{kind}");
    }
    assert_eq!(backend.operate(Operation::Purge { queue: &name }).await.unwrap().affected, 1);
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
    let name = queue("q");
    let browse = BrowseParams::new(&name, JobState::Scheduled).limit(1).payloads(true);
    assert!(backend.browse(browse).await.unwrap().jobs.is_empty());

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
    let name = queue("q");
    let dead = BrowseParams::new(&name, JobState::Dead).limit(10).payloads(true);
    let page = backend.browse(dead).await.unwrap();
    let [view] = &page.jobs[..] else { panic!("{page:?}") };
    assert_eq!(view.job.payload, &broken[..], "the whole record");
    assert_eq!(view.dead.as_ref().unwrap().0.kind, DeadKind::Undecodable);
    let id = view.job.id;
    let [(job, reason)] = &claimed.quarantined[..] else { panic!("{claimed:?}") };
    assert_eq!((job.id, &job.payload), (id, &view.job.payload));
    assert_eq!(Some(reason), view.dead.as_ref().map(|(reason, _)| reason));
    let shown = backend.get(&dq_core::JobRef::new(queue("q"), id)).await.unwrap();
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
    let mut ids: Vec<_> = claimed.jobs.iter().map(|leased| leased.job.id).collect();
    ids.sort();
    assert_eq!(ids, {
        let mut both = [first.id, second.id];
        both.sort();
        both
    });
    use JobState::{Dead, Ended, Ready, Running, Scheduled as Waiting};
    for state in [Waiting, Ready, Running, Dead, Ended] {
        let name = queue("q");
        let all = BrowseParams::new(&name, state).limit(10).payloads(true);
        backend.browse(all).await.unwrap();
    }
    let by_garbage = dq_core::JobRef::new(queue("q"), dq_core::JobKey::new("garbage").unwrap());
    assert!(backend.get(&by_garbage).await.unwrap().is_none());
    backend.cancel(&[by_garbage]).await.unwrap();
    let answer = backend.schedule(vec![keyed("q", "garbage")]).await.unwrap();
    assert!(matches!(answer[..], [Scheduled::Created(_)]), "{answer:?}");
    assert!(backend.get(&by_id(&first)).await.unwrap().is_some());
    let replay = Operation::Replay {
        queue: &queue("q"),
        jobs: &dq_testkit::fixture::dead_ids(&*backend, &queue("q")).await[..],
        due: dq_core::Due::NOW,
    };
    backend.operate(replay).await.unwrap();
    backend.operate(Operation::Purge { queue: &queue("q") }).await.unwrap();
    assert!(stats(&*backend, "q").await.running >= 2, "running jobs are not purged");
}

#[tokio::test]
async fn a_state_that_is_none_stops_no_call() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let name = queue("q");
    backend.schedule(vec![keyed("q", "sample").remember(Duration::from_secs(60))]).await.unwrap();
    let by_key = JobRef::new(queue("q"), JobKey::new("sample").unwrap());
    let states = || redis.command(&["HGETALL", &key("state")]).list().to_vec();
    let valid = states()[1].bytes().to_vec();
    assert_eq!(backend.cancel(&[by_key]).await.unwrap(), [Cancelled::Cancelled]);
    // Every prefix of a state, also with other key lengths.
    let mut garbage = vec![vec![0xff; 100]];
    for length in 0..valid.len() {
        for key_length in [valid[62], 0, 255] {
            let state = [&valid[..62], &[key_length], &valid[63..]].concat();
            garbage.push(state.into_iter().take(length).collect());
        }
    }
    for state in garbage {
        let write = |handle: &[u8]| {
            redis.command_bytes(&[b"HSET", key("state").as_bytes(), handle, &state]);
        };
        let stored = keyed("q", "k");
        backend.schedule(vec![stored.clone()]).await.unwrap();
        let handle = redis.command(&["HGET", &key("key"), "k"]).bytes().to_vec();
        write(&handle);
        assert!(backend.get(&by_id(&stored)).await.unwrap().is_some(), "{state:?}");
        let leased = claim(&*backend, &["q"], 9).await.unwrap().jobs;
        assert_eq!(leased.len(), 1, "{state:?}");
        let retry = Settlement::new(leased[0].lease(), Verdict::retry(Due::NOW, "no"));
        assert_eq!(backend.settle(&[retry]).await.unwrap(), [Settled::Accepted]);

        // While it is leased, and after the lease expires.
        let claimed = claim(&*backend, &["q"], 9).await.unwrap();
        write(&handle);
        let done = done_settlements(&claimed);
        assert_eq!(backend.settle(&done).await.unwrap(), [Settled::LostLease], "{state:?}");
        redis.command_bytes(&[b"ZADD", key("lease").as_bytes(), b"1", &handle]);
        let ready = BrowseParams::new(&name, JobState::Ready).limit(10);
        assert_eq!(backend.browse(ready).await.unwrap().jobs.len(), 1, "{state:?}");
        write(&handle);
        assert_eq!(backend.cancel(&[by_id(&stored)]).await.unwrap(), [Cancelled::Cancelled]);
        assert_eq!(states(), [], "{state:?}");
    }
}

#[tokio::test]
async fn a_job_to_be_pinned_that_lost_its_due_time_is_stored_again() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    let first = keyed("q", "k").remember(Duration::from_secs(60));
    let mut unpinned = first.clone();
    unpinned.remember = Duration::ZERO;
    for (next, pins) in [(first.clone(), 1), (unpinned, 0), (keyed("q", "k"), 0)] {
        backend.schedule(vec![first.clone()]).await.unwrap();
        assert_eq!(redis.command(&["DEL", &key("due")]).int(), 1);
        let stored = backend.schedule(vec![next.clone()]).await.unwrap();
        assert!(matches!(stored[..], [Scheduled::Created(_)]), "{stored:?}");
        let claimed = claim(&*backend, &["q"], 9).await.unwrap();
        assert_eq!(claimed.jobs.len(), 1);
        assert_eq!(claimed.jobs[0].job.id, next.id);
        let done = done_settlements(&claimed);
        assert_eq!(backend.settle(&done).await.unwrap(), [Settled::Accepted]);
        assert_eq!(redis.command(&["HLEN", &key("pin")]).int(), pins);
        redis.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_settlement_writes_nothing_if_it_meets_a_key_of_another_type() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    backend.schedule(vec![keyed("q", "first"), keyed("q", "second")]).await.unwrap();
    let leased = claim(&*backend, &["q"], 9).await.unwrap().jobs;
    for kind in ["dead", "reason", "due"] {
        let retry = || Verdict::retry(Due::After(Duration::from_secs(60)), "no");
        let copy = replace(&redis, kind);
        let verdicts = [
            Settlement::new(leased[0].lease(), retry()),
            Settlement::new(leased[1].lease(), dead()),
        ];
        backend.settle(&verdicts).await.unwrap_err();
        restore(&redis, kind, copy);
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
    let jobs = scores.map(|_| crate::faults::fixture::in_an_hour(job("q")));
    backend.schedule(jobs.to_vec()).await.unwrap();
    let handles = redis.command(&["ZRANGE", &key("due"), "0", "-1"]);
    for (handle, score) in handles.list().iter().zip(scores) {
        redis.command_bytes(&[b"ZADD", key("due").as_bytes(), score.as_bytes(), handle.bytes()]);
    }
    let (queue, mut after, mut seen) = (queue("q"), None, Vec::new());
    for _ in scores {
        let page =
            BrowseParams::new(&queue, JobState::Scheduled).after(after).limit(1).payloads(true);
        let page = backend.browse(page).await.unwrap();
        seen.extend(page.jobs.iter().map(|view| view.job.id));
        after = page.next;
    }
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), after), (5, None), "each once");
}
