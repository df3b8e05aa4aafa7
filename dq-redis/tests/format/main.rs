//! Processes of different versions that share a server: data of an older version is read, and a
//! version that is too old is refused.

mod frozen;

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, ClaimParams, Clock, DeadKind, Due, Ending, Entropy, ErrorKind,
    FencingToken, JobId, JobKey, JobRef, JobState, Lease, NewJob, Operation, QueueName, Renewal,
    Renewed, Result, Scheduled, Settled, Settlement, SystemClock, Target, Timestamp, Verdict, Want,
};
use dq_redis::{RedisBackend, RedisConfig, RedissonBackend, RedissonConfig};
use dq_servers::Redis;

const OLD: &str = include_str!("7f97ef4.txt");
const OLD_REDISSON: &str = include_str!("redisson-154008c.txt");

const LEASE: Duration = Duration::from_secs(600);

async fn connect(server: &Redis) -> Result<RedisBackend> {
    let history = dq_core::HistoryLimits::all(dq_core::HistoryLimit::default());
    let environment = Environment::default().history(history);
    RedisBackend::connect(&RedisConfig::new(server.url()), &environment).await
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The id of job number `n` of the file.
fn old_id(n: u8) -> JobId {
    let mut bytes = [0x11; 16];
    (bytes[6], bytes[8], bytes[15]) = (0x71, 0x81, n);
    JobId::from_bytes(bytes)
}

/// A server with the data of a file.
fn old_server(data: &str) -> Redis {
    let server = Redis::start();
    for line in data.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split('\t');
        let mut command = vec![
            words.next().unwrap().as_bytes().to_vec(),
            words.next().unwrap().as_bytes().to_vec(),
        ];
        command.extend(words.map(bytes_of));
        let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        assert_eq!(server.command_bytes(&command).int(), 1, "{line}");
    }
    server
}

/// Makes the waiting jobs of a file due, runs them and settles them.
async fn finish_waiting(backend: &dyn Backend, queue: &QueueName) {
    for n in [1, 2, 4, 6] {
        let job = JobRef::new(queue.clone(), old_id(n));
        let moves = [dq_core::Reschedule { job, due: Due::NOW }];
        drop(backend.reschedule(&moves).await.unwrap());
    }
    let wants = [Want::new(queue.clone(), 10, LEASE)];
    let claimed = backend.claim(ClaimParams::new(&wants, 10, "new")).await.unwrap();
    let mut payloads: Vec<_> = claimed.jobs.iter().map(|leased| &leased.job.payload[..]).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, [b"{\"n\":1}", b"{\"n\":2}", b"{\"n\":4}", b"{\"n\":6}"]);
    let done: Vec<_> =
        claimed.jobs.iter().map(|job| Settlement::new(job.lease(), Verdict::Done)).collect();
    assert!(
        backend.settle(&done).await.unwrap().iter().all(|settled| *settled == Settled::Accepted)
    );
}

#[tokio::test]
async fn jobs_of_an_older_version_are_read_and_finished() {
    let server = old_server(OLD);
    let backend = connect(&server).await.unwrap();
    let queue = QueueName::new("old").unwrap();
    let stats = backend.stats(std::slice::from_ref(&queue)).await.unwrap().remove(0);
    assert_eq!((stats.scheduled, stats.running, stats.dead), (4, 1, 1));
    let get = async |n| {
        let job = JobRef::new(queue.clone(), old_id(n));
        backend.get(&job).await.unwrap().unwrap()
    };
    let keyed = get(2).await;
    assert_eq!(keyed.job.key, Some(JobKey::new("order-2").unwrap()));
    assert_eq!((keyed.job.max_attempts, &keyed.job.payload[..]), (Some(7), &b"{\"n\":2}"[..]));
    assert_eq!(keyed.job.headers.get("tenant"), Some("acme"));
    let retried = get(4).await;
    assert_eq!((retried.job.attempts, retried.job.deliveries), (1, 1));
    assert_eq!((retried.state, retried.last_error), (JobState::Scheduled, None));
    let (reason, _) = get(5).await.dead.unwrap();
    assert_eq!((reason.kind, reason.message.as_str()), (DeadKind::Exhausted, "too often"));

    // The lease that the older version granted is settled here, and the job is in the history.
    let running = get(3).await;
    assert_eq!((running.state, &running.worker), (JobState::Running, &None));
    let lease =
        Lease { queue: queue.clone(), job: old_id(3), token: FencingToken(0x0006_60de_ad7d_f26f) };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
    let ended = get(3).await;
    assert_eq!(ended.job.key, Some(JobKey::new("order-3").unwrap()));
    assert_eq!((ended.state, ended.job.deliveries), (JobState::Ended, 1));
    assert_eq!((ended.job.created, ended.leased_since), (running.job.created, None));

    let remove = Operation::Remove { queue: &queue, jobs: &[old_id(5)] };
    assert_eq!(backend.operate(remove).await.unwrap().affected, 1);
    let removed = get(5).await.ended.unwrap();
    assert_eq!(removed.ending, Ending::Removed);
    assert_eq!(removed.reason.as_deref(), Some("exhausted: too often"));

    finish_waiting(&backend, &queue).await;
    let stats = backend.stats(std::slice::from_ref(&queue)).await.unwrap().remove(0);
    assert_eq!((stats.stored(), stats.adds_up()), (0, Some(true)));
}

#[tokio::test]
async fn jobs_in_a_queue_of_redisson_of_an_older_version_are_read_and_finished() {
    let server = old_server(OLD_REDISSON);
    let config = RedissonConfig::new(server.url());
    let backend = RedissonBackend::connect(&config, &Environment::default()).await.unwrap();
    let queue = QueueName::new("old").unwrap();
    let stats = backend.stats(std::slice::from_ref(&queue)).await.unwrap().remove(0);
    assert_eq!((stats.scheduled, stats.running, stats.dead), (4, 1, 1));
    let get = async |n| {
        let job = JobRef::new(queue.clone(), old_id(n));
        backend.get(&job).await.unwrap().unwrap()
    };
    let keyed = get(2).await;
    assert_eq!(keyed.job.key, Some(JobKey::new("order-2").unwrap()));
    assert_eq!((keyed.job.max_attempts, &keyed.job.payload[..]), (Some(7), &b"{\"n\":2}"[..]));
    assert_eq!(keyed.job.headers.get("tenant"), Some("acme"));
    let retried = get(4).await;
    assert_eq!((retried.job.attempts, retried.last_error.as_deref()), (1, Some("no")));
    let (reason, _) = get(5).await.dead.unwrap();
    assert_eq!((reason.kind, reason.message.as_str()), (DeadKind::Exhausted, "too often"));
    assert_eq!(get(3).await.state, JobState::Running);
    let token = FencingToken(0x0006_60f8_9cd4_3852);
    let lease = Lease { queue: queue.clone(), job: old_id(3), token };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);

    finish_waiting(&backend, &queue).await;
    assert_eq!(backend.stats(std::slice::from_ref(&queue)).await.unwrap()[0].live(), 0);
}

#[tokio::test]
async fn a_version_that_is_too_old_for_the_prefix_is_refused_when_it_connects() {
    let server = Redis::start();
    connect(&server).await.unwrap();
    let stored = server.command(&["HMGET", "{dq}:format", "format", "write", "read"]);
    let stored: Vec<String> = stored.list().iter().map(|item| item.text()).collect();
    assert_eq!(stored, ["3", "3", "3"]);
    // A later format that older versions may use, and its version is not lowered.
    server.command(&["HSET", "{dq}:format", "format", "9", "write", "3", "read", "3"]);
    connect(&server).await.unwrap();
    assert_eq!(server.command(&["HGET", "{dq}:format", "format"]).text(), "9");
    for field in ["write", "read"] {
        for too_new in ["4", "x"] {
            server.command(&["HSET", "{dq}:format", field, too_new]);
            let error = connect(&server).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.remedy_text().unwrap().contains("update this program"), "{error}");
        }
        server.command(&["HSET", "{dq}:format", field, "1"]);
    }
}

/// Raises the format of a queue while a process runs: it may finish the job that it holds, and is
/// refused otherwise.
async fn raise_while_running(backend: &dyn Backend, server: &Redis, meta: &str) {
    let queue = QueueName::new("q").unwrap();
    let job = || {
        let id = Entropy::from_os().job_id(SystemClock.now());
        NewJob::new(id, queue.clone(), Timestamp::EPOCH, "1".into())
    };
    drop(backend.schedule(vec![job(), job()]).await.unwrap());
    let wants = [Want::new(queue.clone(), 1, LEASE)];
    let claim = || backend.claim(ClaimParams::new(&wants, 1, "w"));
    let leased = claim().await.unwrap().jobs.remove(0);
    let by_id = JobRef::new(queue.clone(), Target::Id(leased.job.id));

    server.command(&["HSET", meta, "format", "9/9/2"]);
    let refused = [
        backend.schedule(vec![job()]).await.err(),
        claim().await.err(),
        backend.cancel(std::slice::from_ref(&by_id)).await.err(),
        backend.operate(Operation::Pause { queue: &queue }).await.err(),
        backend.operate(Operation::Purge { queue: &queue }).await.err(),
    ];
    for error in refused {
        assert_eq!(error.unwrap().kind(), ErrorKind::Incompatible);
    }
    // It may still read.
    assert!(backend.get(&by_id).await.unwrap().is_some());
    server.command(&["HSET", meta, "format", "9/9/9"]);
    let refused = [
        backend.get(&by_id).await.err(),
        backend.browse(BrowseParams::new(&queue, JobState::Ready)).await.err(),
        backend.stats(std::slice::from_ref(&queue)).await.err(),
        backend.forecast(&queue, &[Timestamp::EPOCH, SystemClock.now()]).await.err(),
    ];
    for error in refused {
        assert_eq!(error.unwrap().kind(), ErrorKind::Incompatible);
    }

    let renewed = backend.renew(&[Renewal::new(leased.lease(), LEASE)]).await.unwrap();
    assert!(matches!(renewed[..], [Renewed::Until(_)]));
    let done = [Settlement::new(leased.lease(), Verdict::Done)];
    assert_eq!(backend.settle(&done).await.unwrap(), [Settled::Accepted]);
}

#[tokio::test]
async fn a_running_process_finishes_what_it_holds_when_the_format_is_raised() {
    let server = Redis::start();
    let native = connect(&server).await.unwrap();
    raise_while_running(&native, &server, "{dq}:meta:q").await;
    let config = RedissonConfig::new(server.url());
    let redisson = RedissonBackend::connect(&config, &Environment::default()).await.unwrap();
    raise_while_running(&redisson, &server, "dq:meta:{q}").await;
}

#[tokio::test]
async fn pins_in_shards_are_neither_read_nor_marked_when_the_format_is_raised() {
    let server = Redis::start();
    let queue = QueueName::new("q").unwrap();
    let open = async || {
        let mut config = RedisConfig::new(server.url());
        config.shards.insert(queue.clone(), 2);
        RedisBackend::connect(&config, &Environment::default()).await.unwrap()
    };
    let id = || Entropy::from_os().job_id(SystemClock.now());
    let job = |id| NewJob::new(id, queue.clone(), Timestamp::EPOCH, "1".into()).remember(LEASE);
    let backend = open().await;
    let pinned = job(id());
    assert!(backend.schedule(vec![pinned.clone()]).await.unwrap()[0].is_stored());
    let wants = [Want::new(queue.clone(), 1, LEASE)];
    let claimed = backend.claim(ClaimParams::new(&wants, 1, "w")).await.unwrap().jobs.remove(0);
    let done = [Settlement::new(claimed.lease(), Verdict::Done)];
    assert_eq!(backend.settle(&done).await.unwrap(), [Settled::Accepted]);
    let again = backend.schedule(vec![pinned.clone()]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "{again:?}");

    let shards = ["{dq#2.0}:meta:q", "{dq#2.1}:meta:q"];
    for meta in shards {
        server.command(&["HSET", meta, "format", "9/9/2"]);
    }
    let error = backend.schedule(vec![pinned]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "a pin of a later format: {error}");

    for meta in shards {
        assert_eq!(server.command(&["HDEL", meta, "format"]).int(), 1);
    }
    server.command(&["HSET", "{dq}:meta:q", "format", "9/9/2"]);
    // A new backend, since the first one knows that the queue is marked as having pins, and does
    // not ask.
    let error = open().await.schedule(vec![job(id())]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "a mark of a later format: {error}");
}
