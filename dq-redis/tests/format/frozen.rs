//! The stored form of what format 2 adds: ended jobs, pinned ids, notes of jobs and announcements. Data
//! that was written once, in format 2 and in format 3, is read as it was then.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Announcement, Backend, BrowseParams, ClaimParams, DeadKind, DeadReason, Due, Ending,
    FencingToken, HistoryLimit, HistoryLimits, JobKey, JobRef, JobState, Lease, NewJob, Operation,
    QueueName, Reschedule, Scheduled, Settled, Settlement, Verdict, Want,
};
use dq_redis::{RedisBackend, RedisConfig, RedissonBackend, RedissonConfig};
use dq_servers::{Redis, Reply};

use crate::{old_id, old_server};

/// Data that [`write_the_data`] wrote, and the token of the running job there.
type Written = (&'static str, FencingToken);

const NATIVE_2: Written = (include_str!("history-2.txt"), FencingToken(1_795_649_132_458_258));
const REDISSON_2: Written =
    (include_str!("redisson-history-2.txt"), FencingToken(1_795_649_132_590_900));
const NATIVE_3: Written = (include_str!("history-3.txt"), FencingToken(1_795_690_706_756_264));
const REDISSON_3: Written =
    (include_str!("redisson-history-3.txt"), FencingToken(1_795_690_706_886_565));

/// The server's clock has moved on by years when the data are read.
const LONG: Duration = Duration::from_secs(30 * 365 * 86_400);

fn environment() -> Environment {
    Environment::default().history(HistoryLimits::all(HistoryLimit::new(1_000, LONG)))
}

async fn native(server: &Redis) -> RedisBackend {
    RedisBackend::connect(&RedisConfig::new(server.url()), &environment()).await.unwrap()
}

async fn redisson(server: &Redis) -> RedissonBackend {
    RedissonBackend::connect(&RedissonConfig::new(server.url()), &environment()).await.unwrap()
}

fn queue() -> QueueName {
    QueueName::new("old").unwrap()
}

fn job(n: u8) -> NewJob {
    let payload = format!("{{\"n\":{n}}}").into_bytes();
    let job = NewJob::new(old_id(n), queue(), Due::NOW, payload.into());
    job.key(JobKey::new(format!("order-{n}")).unwrap())
}

/// Stores a job in each of the forms. Returns the token of the running one.
async fn write(backend: &dyn Backend) -> FencingToken {
    let _ = backend
        .schedule(vec![job(1).remember(LONG), job(2), job(3), job(4), job(5)])
        .await
        .unwrap();
    let wants = [Want::new(queue(), 5, LONG)];
    let leased = backend.claim(ClaimParams::new(&wants, 5, "web-3")).await.unwrap().jobs;
    let reason = DeadReason::new(DeadKind::Rejected, "no such host");
    let mut token = None;
    for leased in leased {
        let verdict = match leased.job.id {
            id if id == old_id(1) => Verdict::Done,
            id if id == old_id(2) => Verdict::skip("it is paid"),
            id if id == old_id(3) => Verdict::retry(Due::After(LONG), "connect refused"),
            id if id == old_id(5) => Verdict::Dead { reason: reason.clone(), failed: true },
            _ => {
                token = Some(leased.token);
                continue;
            }
        };
        let settlement = [Settlement::new(leased.lease(), verdict)];
        assert_eq!(backend.settle(&settlement).await.unwrap(), [Settled::Accepted]);
    }
    let announcement = Announcement::new("web-3", b"{\"host\":\"a\"}".to_vec(), LONG);
    backend.announce(announcement).await.unwrap();
    token.unwrap()
}

/// All keys of a server, as commands that store them again: see `old_server`.
fn dump(server: &Redis) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines = Vec::new();
    for key in server.command(&["KEYS", "*"]).list() {
        let key = key.text();
        let (command, width, all) = match server.command(&["TYPE", &key]).text().as_str() {
            "zset" => ("ZADD", 2, server.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"])),
            "hash" => ("HSET", 2, server.command(&["HGETALL", &key])),
            "set" => ("SADD", 1, server.command(&["SMEMBERS", &key])),
            "list" => ("RPUSH", 1, server.command(&["LRANGE", &key, "0", "-1"])),
            kind => panic!("{key} is a {kind}"),
        };
        for words in all.list().chunks(width) {
            let mut words: Vec<_> = words.iter().map(|word| hex(word.bytes())).collect();
            if command == "ZADD" {
                // The score comes first.
                words.reverse();
            }
            lines.push(format!("{command}\t{key}\t{}", words.join("\t")));
        }
    }
    lines.sort();
    lines.join("\n") + "\n"
}

/// Writes `target/history.txt` and `target/redisson-history.txt`, to be copied here with the number of
/// the format. Another format would write other files: keep those that are here.
#[tokio::test]
#[ignore = "writes the files that the other tests read"]
async fn write_the_data() {
    let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let server = Redis::start();
    let token = write(&native(&server).await).await;
    std::fs::write(target.join("history.txt"), dump(&server)).unwrap();
    let server = Redis::start();
    let redisson = write(&redisson(&server).await).await;
    std::fs::write(target.join("redisson-history.txt"), dump(&server)).unwrap();
    println!("the tokens of the running jobs: {token:?} and {redisson:?}");
}

/// Reads what [`write`] has stored.
async fn read(backend: &dyn Backend, token: FencingToken) {
    let queue = queue();
    let stats = backend.stats(std::slice::from_ref(&queue)).await.unwrap().remove(0);
    assert_eq!((stats.scheduled, stats.running, stats.dead), (1, 1, 1));
    let get = async |n| {
        let job = JobRef::new(queue.clone(), old_id(n));
        backend.get(&job).await.unwrap().unwrap()
    };
    let done = get(1).await;
    let ended = done.ended.unwrap();
    assert_eq!((ended.ending, ended.reason), (Ending::Done, None));
    assert_eq!((done.job.attempts, done.job.deliveries), (0, 1));
    assert_eq!(
        (done.worker.as_deref(), done.job.key.unwrap().as_str()),
        (Some("web-3"), "order-1")
    );
    assert!(
        done.leased_since.is_some_and(|since| since <= ended.at && ended.at.since(since) < LONG)
    );
    let skipped = get(2).await.ended.unwrap();
    assert_eq!((skipped.ending, skipped.reason.as_deref()), (Ending::Skipped, Some("it is paid")));
    let listed = backend.browse(BrowseParams::new(&queue, JobState::Ended)).await.unwrap();
    assert_eq!(listed.jobs.len(), 2);
    let retried = get(3).await;
    assert_eq!((retried.state, retried.job.attempts), (JobState::Scheduled, 1));
    assert_eq!(retried.last_error.as_deref(), Some("connect refused"));
    assert_eq!(get(4).await.worker.as_deref(), Some("web-3"));
    let (reason, _) = get(5).await.dead.unwrap();
    assert_eq!((reason.kind, &*reason.message), (DeadKind::Rejected, "no such host"));

    let again = backend.schedule(vec![job(1)]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "its id is pinned: {again:?}");
    let runners = backend.runners().await.unwrap();
    assert_eq!(
        (runners[0].name.as_str(), &runners[0].info[..]),
        ("web-3", &b"{\"host\":\"a\"}"[..])
    );

    let lease = Lease { queue, job: old_id(4), token };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
}

#[tokio::test]
async fn ended_jobs_pins_notes_and_announcements_are_read() {
    for (data, token) in [NATIVE_2, NATIVE_3] {
        read(&native(&old_server(data)).await, token).await;
    }
}

#[tokio::test]
async fn ended_jobs_pins_notes_and_announcements_in_a_queue_of_redisson_are_read() {
    for (data, token) in [REDISSON_2, REDISSON_3] {
        read(&redisson(&old_server(data)).await, token).await;
    }
}

/// Claims and settles jobs of format 2: their notes move to their states, and older versions are refused
/// from then on. `meta` and `notes` are names of keys.
async fn move_notes(
    backend: &dyn Backend,
    server: &Redis,
    old: FencingToken,
    meta: &str,
    notes: &str,
) {
    let notes = || server.command(&["HLEN", notes]).int();
    let formats = || server.command(&["HMGET", meta, "format"]);
    assert_eq!((notes(), &formats().list()[0]), (3, &Reply::Nil));

    let queue = queue();
    let by_id = |n| JobRef::new(queue.clone(), old_id(n));
    let get = async |n| backend.get(&by_id(n)).await.unwrap().unwrap();
    let settle = async |n, token, verdict| {
        let lease = Lease { queue: queue.clone(), job: old_id(n), token };
        let settled = backend.settle(&[Settlement::new(lease, verdict)]).await.unwrap();
        assert_eq!(settled, [Settled::Accepted]);
    };
    let wants = [Want::new(queue.clone(), 5, LONG)];
    let claim = async || {
        let claimed = backend.claim(ClaimParams::new(&wants, 5, "web-4")).await.unwrap();
        claimed.jobs.into_iter().next().unwrap()
    };

    // The lease that format 2 granted.
    settle(4, old, Verdict::Snooze(Due::After(LONG))).await;
    assert_eq!(get(4).await.job.deliveries, 1);
    assert_eq!((notes(), formats().list()[0].text()), (2, "3/3/3".to_owned()));

    // A job that failed before.
    drop(backend.reschedule(&[Reschedule { job: by_id(3), due: Due::NOW }]).await.unwrap());
    let leased = claim().await;
    assert_eq!((leased.job.id, leased.job.attempts, leased.job.deliveries), (old_id(3), 1, 2));
    let running = get(3).await;
    assert_eq!(
        (running.worker.as_deref(), running.last_error.as_deref()),
        (Some("web-4"), Some("connect refused"))
    );
    assert_eq!(notes(), 1);
    settle(3, leased.token, Verdict::retry(Due::After(LONG), "reset by peer")).await;
    assert_eq!(get(3).await.last_error.as_deref(), Some("reset by peer"));

    // A dead job.
    let replay = Operation::Replay { queue: &queue, jobs: &[old_id(5)], due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 1);
    assert_eq!(get(5).await.last_error, None);
    let leased = claim().await;
    assert_eq!((leased.job.id, notes()), (old_id(5), 0));
    settle(5, leased.token, Verdict::Done).await;
    assert_eq!(get(5).await.ended.unwrap().ending, Ending::Done);
}

#[tokio::test]
async fn notes_of_format_2_move_to_the_states() {
    let (data, token) = NATIVE_2;
    let server = old_server(data);
    move_notes(&native(&server).await, &server, token, "{dq}:meta:old", "{dq}:note:old").await;
    let (data, token) = REDISSON_2;
    let server = old_server(data);
    move_notes(&redisson(&server).await, &server, token, "dq:meta:{old}", "dq:note:{old}").await;
}

/// A job whose id is to be pinned, as format 2 stored it: with a note and without a state.
async fn pin_of_format_2(backend: &dyn Backend, server: &Redis, states: &str, notes: &str) {
    let pinned = || job(1).remember(LONG);
    assert!(backend.schedule(vec![pinned()]).await.unwrap()[0].is_stored());
    let stored = server.command(&["HGETALL", states]);
    let (handle, state) = (stored.list()[0].bytes(), stored.list()[1].bytes());
    assert_eq!(state[28..30], [254, 7], "to be pinned, length of the key");
    assert_eq!(server.command_bytes(&[b"HDEL", states.as_bytes(), handle]).int(), 1);
    let note = &state[2 + 28 + 7..];
    assert_eq!(server.command_bytes(&[b"HSET", notes.as_bytes(), handle, note]).int(), 1);

    let wants = [Want::new(queue(), 1, LONG)];
    let leased = backend.claim(ClaimParams::new(&wants, 1, "w")).await.unwrap().jobs.remove(0);
    assert_eq!(server.command(&["HLEN", notes]).int(), 0);
    let done = [Settlement::new(leased.lease(), Verdict::Done)];
    assert_eq!(backend.settle(&done).await.unwrap(), [Settled::Accepted]);
    let again = backend.schedule(vec![pinned()]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "{again:?}");
}

#[tokio::test]
async fn a_pin_that_format_2_stored_counts() {
    let server = Redis::start();
    pin_of_format_2(&native(&server).await, &server, "{dq}:state:old", "{dq}:note:old").await;
    let server = Redis::start();
    pin_of_format_2(&redisson(&server).await, &server, "dq:state:{old}", "dq:note:{old}").await;
}

#[tokio::test]
async fn the_format_of_a_queue_is_raised_by_the_first_state_with_a_note() {
    let server = Redis::start();
    let native = native(&server).await;
    let format = || server.command(&["HMGET", "{dq}:meta:old", "format"]).list()[0].clone();
    assert!(native.schedule(vec![job(1)]).await.unwrap()[0].is_stored());
    assert_eq!(format(), Reply::Nil, "a job alone is as before");
    assert!(native.schedule(vec![job(2).remember(LONG)]).await.unwrap()[0].is_stored());
    assert_eq!(format().text(), "3/3/3");

    // A later version has raised it further.
    server.command(&["HSET", "{dq}:meta:old", "format", "9/3/3"]);
    assert!(native.schedule(vec![job(3).remember(LONG)]).await.unwrap()[0].is_stored());
    let wants = [Want::new(queue(), 3, LONG)];
    assert_eq!(native.claim(ClaimParams::new(&wants, 3, "w")).await.unwrap().jobs.len(), 3);
    assert_eq!(format().text(), "9/3/3");
}

/// How a version of format 2 ends an expired lease: it takes all after the numbers of a state for the
/// key. KEYS: lease, state, due. ARGV: the handle.
const END_LEASE_OF_FORMAT_2: &str = "
    local raw = redis.call('HGET', KEYS[2], ARGV[1])
    local token, due, attempts, deliveries, losses = struct.unpack('>I8i8I4I4I4', raw)
    local packed = struct.pack('>I8i8I4I4I4', 0, due, attempts, deliveries, losses + 1)
    redis.call('ZREM', KEYS[1], ARGV[1])
    redis.call('HSET', KEYS[2], ARGV[1], packed .. string.sub(raw, 29))
    redis.call('ZADD', KEYS[3], 'NX', due, ARGV[1])
    return token";

/// A process of format 2 that settles what it still holds ends the leases of crashed processes first.
#[tokio::test]
async fn a_lease_may_be_ended_by_a_process_of_format_2() {
    let server = Redis::start();
    let backend = native(&server).await;
    let stored = job(1).remember(LONG);
    assert!(backend.schedule(vec![stored.clone()]).await.unwrap()[0].is_stored());
    let wants = [Want::new(queue(), 1, LONG)];
    let claim = async |worker| {
        backend.claim(ClaimParams::new(&wants, 1, worker)).await.unwrap().jobs.remove(0)
    };
    let settle = async |lease, verdict| {
        let settled = backend.settle(&[Settlement::new(lease, verdict)]).await.unwrap();
        assert_eq!(settled, [Settled::Accepted]);
    };
    let failed = claim("web-1").await;
    settle(failed.lease(), Verdict::retry(Due::NOW, "connect refused")).await;
    let lost = claim("web-2").await;

    let handle = server.command(&["HKEYS", "{dq}:state:old"]).list()[0].bytes().to_vec();
    let keys = ["lease", "state", "due"].map(|kind| format!("{{dq}}:{kind}:old"));
    let [lease, state, due] = keys.each_ref().map(String::as_bytes);
    let script = END_LEASE_OF_FORMAT_2.as_bytes();
    let ended = server.command_bytes(&[b"EVAL", script, b"3", lease, state, due, &handle]);
    assert_eq!(ended.int(), i64::try_from(lost.token.0).unwrap());

    let by_id = JobRef::new(queue(), old_id(1));
    let waiting = backend.get(&by_id).await.unwrap().unwrap();
    assert_eq!((waiting.state, waiting.job.due), (JobState::Ready, lost.job.due));
    assert_eq!((waiting.job.attempts, waiting.job.deliveries, waiting.job.losses), (1, 2, 1));
    assert_eq!(waiting.last_error.as_deref(), Some("connect refused"));
    settle(claim("web-3").await.lease(), Verdict::Done).await;
    let done = backend.get(&by_id).await.unwrap().unwrap();
    assert_eq!((done.state, done.worker.as_deref()), (JobState::Ended, Some("web-3")));
    assert_eq!(done.job.key, stored.key);
    let again = backend.schedule(vec![stored]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "its id is pinned: {again:?}");
    let key_is_live = server.command(&["HLEN", "{dq}:key:old"]).int();
    assert_eq!(key_is_live, 0);
}
