//! The stored form of jobs, ended jobs, pinned ids and announcements: data written long ago reads
//! the same today.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Announcement, Backend, BrowseParams, ClaimParams, DeadKind, DeadReason, Due, Ending,
    FencingToken, HistoryLimit, HistoryLimits, JobId, JobKey, JobRef, JobState, Lease, NewJob,
    QueueName, Scheduled, Settled, Settlement, Verdict, Want,
};
use dq_redis::{RedisBackend, RedisConfig, RedissonBackend, RedissonConfig};
use dq_servers::Redis;

type Written = (&'static str, FencingToken);

const NATIVE: Written = (include_str!("native.txt"), FencingToken(1_795_829_959_060_402));
const REDISSON: Written = (include_str!("redisson.txt"), FencingToken(1_795_829_959_611_414));

/// The server's clock is years ahead when the data are read.
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

fn id(n: u8) -> JobId {
    let mut bytes = [0x11; 16];
    (bytes[6], bytes[8], bytes[15]) = (0x71, 0x81, n);
    JobId::from_bytes(bytes)
}

fn job(n: u8) -> NewJob {
    let payload = format!("{{\"n\":{n}}}").into_bytes();
    let mut job = NewJob::new(id(n), queue(), Due::NOW, payload.into());
    job.headers.insert("tenant", "acme");
    job.max_attempts = Some(7);
    job.key(JobKey::new(format!("order-{n}")).unwrap())
}

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
            one if one == id(1) => Verdict::Done,
            one if one == id(2) => Verdict::skip("it is paid"),
            one if one == id(3) => Verdict::retry(Due::After(LONG), "connect refused"),
            one if one == id(5) => Verdict::Dead { reason: reason.clone(), failed: true },
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
                words.reverse();
            }
            lines.push(format!("{command}\t{key}\t{}", words.join("\t")));
        }
    }
    lines.sort();
    lines.join("\n") + "\n"
}

/// Writes `target/native.txt` and `target/redisson.txt`; copy them here.
#[tokio::test]
#[ignore = "writes the files that the other tests read"]
async fn write_the_data() {
    let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let server = Redis::start();
    let token = write(&native(&server).await).await;
    std::fs::write(target.join("native.txt"), dump(&server)).unwrap();
    let server = Redis::start();
    let redisson = write(&redisson(&server).await).await;
    std::fs::write(target.join("redisson.txt"), dump(&server)).unwrap();
    println!("the tokens of the running jobs: {token:?} and {redisson:?}");
}

async fn read(backend: &dyn Backend, token: FencingToken) {
    let queue = queue();
    let stats = backend.stats(std::slice::from_ref(&queue)).await.unwrap().remove(0);
    assert_eq!((stats.scheduled, stats.running, stats.dead), (1, 1, 1));
    let get = async |n| {
        let job = JobRef::new(queue.clone(), id(n));
        backend.get(&job).await.unwrap().unwrap()
    };
    let done = get(1).await;
    let ended = done.ended.unwrap();
    assert_eq!((ended.ending, ended.reason), (Ending::Done, None));
    assert_eq!((done.job.attempts, done.job.deliveries), (0, 1));
    assert_eq!((done.job.max_attempts, done.job.first_due), (Some(7), done.job.due));
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
    assert!(retried.job.due.since(retried.job.first_due) >= LONG);
    assert_eq!((retried.job.max_attempts, &retried.job.payload[..]), (Some(7), &b"{\"n\":3}"[..]));
    assert_eq!(retried.job.headers.get("tenant"), Some("acme"));
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

    let lease = Lease { queue, job: id(4), token };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
}

fn server_with(data: &str) -> Redis {
    let bytes_of = |hex: &str| {
        let digits = hex.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect::<Vec<u8>>()
    };
    let server = Redis::start();
    for line in data.lines() {
        let mut words = line.split('\t');
        let mut command: Vec<Vec<u8>> = words.by_ref().take(2).map(Into::into).collect();
        command.extend(words.map(bytes_of));
        let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        assert_eq!(server.command_bytes(&command).int(), 1, "{line}");
    }
    server
}

#[tokio::test]
async fn data_that_were_written_once_are_read() {
    let (data, token) = NATIVE;
    read(&native(&server_with(data)).await, token).await;
}

#[tokio::test]
async fn data_that_were_written_once_in_a_queue_of_redisson_are_read() {
    let (data, token) = REDISSON;
    read(&redisson(&server_with(data)).await, token).await;
}
