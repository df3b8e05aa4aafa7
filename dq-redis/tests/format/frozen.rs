//! Data that the first release wrote reads the same today. A line of `native.txt` or `redisson.txt`
//! is a command, a key, and arguments in hex.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, DeadKind, Due, Ending, FencingToken, HistoryLimit, HistoryLimits, JobId,
    JobRef, JobState, JobView, Lease, NewJob, QueueName, Scheduled, Settled, Settlement, Verdict,
};
use dq_redis::{RedisBackend, RedisConfig, RedissonBackend, RedissonConfig};
use dq_servers::Redis;

/// The data, and the fencing token of the job that was running.
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

async fn get(backend: &dyn Backend, n: u8) -> JobView {
    backend.get(&JobRef::new(queue(), id(n))).await.unwrap().unwrap()
}

/// A process named `web-3` left five jobs with the ids 1 to 5 and the keys `order-1` to `order-5`:
/// done and pinned, skipped, retried, running, and dead.
async fn read(backend: &dyn Backend, token: FencingToken) {
    let queue = queue();
    let stats = backend.stats(std::slice::from_ref(&queue)).await.unwrap().remove(0);
    assert_eq!((stats.scheduled, stats.running, stats.dead), (1, 1, 1));

    let done = get(backend, 1).await;
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
    let skipped = get(backend, 2).await.ended.unwrap();
    assert_eq!((skipped.ending, skipped.reason.as_deref()), (Ending::Skipped, Some("it is paid")));
    let listed = backend.browse(BrowseParams::new(&queue, JobState::Ended)).await.unwrap();
    assert_eq!(listed.jobs.len(), 2);
    let retried = get(backend, 3).await;
    assert_eq!((retried.state, retried.job.attempts), (JobState::Scheduled, 1));
    assert_eq!(retried.last_error.as_deref(), Some("connect refused"));
    assert!(retried.job.due.since(retried.job.first_due) >= LONG);
    assert_eq!((retried.job.max_attempts, &retried.job.payload[..]), (Some(7), &b"{\"n\":3}"[..]));
    assert_eq!(retried.job.headers.get("tenant"), Some("acme"));
    assert_eq!(get(backend, 4).await.worker.as_deref(), Some("web-3"));
    let (reason, _) = get(backend, 5).await.dead.unwrap();
    assert_eq!((reason.kind, &*reason.message), (DeadKind::Rejected, "no such host"));

    let pinned = NewJob::new(id(1), queue.clone(), Due::NOW, "again".into());
    let again = backend.schedule(vec![pinned]).await.unwrap();
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
