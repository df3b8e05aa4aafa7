//! Ended jobs: what the server keeps, for how long, and after a crash.

use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Due, Ending, HistoryLimit, HistoryLimits, JobKey, JobRef, JobState,
    JobView, LeasedJob, NewJob, OnRunning, Operation, Order, QueueName, Scheduled, Settled,
    Settlement, Verdict,
};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::Redis;
use dq_testkit::fixture::{self, claim_for, retry};

const LEASE: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(86_400);

fn queue() -> QueueName {
    fixture::queue("q")
}

async fn connect(server: &Redis, limit: HistoryLimit, shards: u16) -> RedisBackend {
    let mut environment = Environment::default();
    environment.history = HistoryLimits::all(limit);
    let mut config = RedisConfig::new(server.url());
    config.response_timeout = Duration::from_secs(60);
    config.shards.insert(queue(), shards);
    RedisBackend::connect(&config, &environment).await.unwrap()
}

fn job() -> NewJob {
    fixture::job("q")
}

async fn store(backend: &RedisBackend, jobs: Vec<NewJob>) {
    let answers = backend.schedule(jobs).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Scheduled::Created(_))));
}

async fn claim(backend: &RedisBackend, max: usize) -> Vec<LeasedJob> {
    claim_for(backend, &["q"], max, LEASE).await.unwrap().jobs
}

async fn settle(backend: &RedisBackend, leased: &LeasedJob, verdict: Verdict) {
    let settlement = Settlement::new(leased.lease(), verdict);
    assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
}

async fn ended(backend: &RedisBackend) -> Vec<JobView> {
    pages(backend, Order::Descending, 1_000).await
}

async fn pages(backend: &RedisBackend, order: Order, limit: usize) -> Vec<JobView> {
    let queue = queue();
    let (mut views, mut after) = (Vec::new(), None);
    loop {
        let params = BrowseParams::new(&queue, JobState::Ended).limit(limit).order(order);
        let page = backend.browse(params.after(after)).await.unwrap();
        views.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            return views;
        }
    }
}

fn scripts(server: &Redis) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).text();
    let calls = |line: &str| -> Option<u64> {
        let rest = line.strip_prefix("cmdstat_evalsha:calls=")?;
        rest.split(',').next()?.parse().ok()
    };
    info.lines().find_map(calls).unwrap_or(0)
}

#[tokio::test]
async fn a_job_that_ends_or_begins_its_next_step_is_one_script() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::default(), 1).await;
    let key = JobKey::new("key").unwrap();
    // A script's first call sends its text: EVAL.
    for _ in 0..2 {
        store(&backend, vec![job().key(key.clone()).remember(DAY)]).await;
        let leased = claim(&backend, 1).await.remove(0);
        let again = Verdict::Again { due: Due::NOW, payload: "next".into() };
        let before = scripts(&server);
        settle(&backend, &leased, again).await;
        assert!(scripts(&server) <= before + 1);
        let leased = claim(&backend, 1).await.remove(0);
        let before = scripts(&server);
        store(&backend, vec![job().key(key.clone()).on_running(OnRunning::Detach)]).await;
        settle(&backend, &leased, Verdict::Done).await;
        drop(backend.cancel(&[JobRef::new(queue(), key.clone())]).await.unwrap());
        assert!(scripts(&server) <= before + 3);
    }
    assert_eq!(ended(&backend).await.len(), 4);
}

#[tokio::test]
async fn what_was_settled_survives_a_crash_of_the_server() {
    let server = Redis::options().aof().set("appendfsync", "always").start();
    let backend = connect(&server, HistoryLimit::default(), 1).await;
    let key = JobKey::new("key").unwrap();
    let first = job().key(key.clone()).remember(DAY);
    let by_id = fixture::by_id(&first);
    store(&backend, vec![first.clone()]).await;
    let leased = claim(&backend, 1).await.remove(0);
    let again = Verdict::Again { due: Due::NOW, payload: "next".into() };
    settle(&backend, &leased, again).await;
    server.kill();
    server.restart();
    let leased = retry(|| claim_for(&backend, &["q"], 1, LEASE)).await.jobs.remove(0);
    assert_eq!((leased.job.id, &leased.job.payload[..]), (first.id, &b"next"[..]));
    store(&backend, vec![job().key(key.clone()).on_running(OnRunning::Detach)]).await;
    server.kill();
    server.restart();
    let detached = retry(|| backend.get(&by_id)).await.unwrap();
    assert_eq!((detached.state, detached.job.key), (JobState::Running, None));
    settle(&backend, &leased, Verdict::Done).await;
    server.kill();
    server.restart();
    let done = retry(|| backend.get(&by_id)).await.unwrap();
    assert_eq!(done.ended.unwrap().ending, Ending::Done);
    let repeated = backend.schedule(vec![first]).await.unwrap();
    assert!(matches!(repeated[..], [Scheduled::Ended(_)]));
}

#[tokio::test]
async fn the_history_has_at_most_as_many_jobs_as_its_limit() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::new(10, DAY), 1).await;
    store(&backend, (0..300).map(|_| job()).collect()).await;
    for leased in claim(&backend, 25).await {
        settle(&backend, &leased, Verdict::Done).await;
    }
    assert_eq!(ended(&backend).await.len(), 10);
    let purge = Operation::Purge { queue: &queue() };
    assert_eq!(backend.operate(purge).await.unwrap().affected, 275);
    let views = ended(&backend).await;
    assert!(views.iter().all(|view| view.ended.as_ref().unwrap().ending == Ending::Removed));
    assert_eq!(views.len(), 10);
    for key in ["{dq}:ended:q", "{dq}:past:q"] {
        let count = if key.contains("past") { "HLEN" } else { "ZCARD" };
        assert_eq!(server.command(&[count, key]).int(), 10);
        // The keys outlive the history.
        assert!(server.command(&["PTTL", key]).int() >= 86_400_000);
    }
    // A smaller limit applies at once, also to stored jobs.
    let backend = connect(&server, HistoryLimit::new(3, DAY), 1).await;
    assert_eq!(ended(&backend).await.len(), 3);
}

#[tokio::test]
async fn a_history_that_is_off_writes_nothing() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::OFF, 1).await;
    store(&backend, vec![job(), job().remember(DAY)]).await;
    for leased in claim(&backend, 2).await {
        settle(&backend, &leased, Verdict::Done).await;
        assert_eq!(backend.get(&JobRef::new(queue(), leased.job.id)).await.unwrap(), None);
    }
    assert!(ended(&backend).await.is_empty());
    let keys = |kind: &str| server.command(&["EXISTS", &format!("{{dq}}:{kind}:q")]).int();
    assert_eq!(["past", "ended", "state", "job"].map(keys), [0; 4]);
    // The pin does not depend on the history.
    assert_eq!(["pin", "unpin"].map(keys), [1; 2]);
}

#[tokio::test]
async fn shards_share_the_limit_and_are_listed_in_order() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::new(40, DAY), 4).await;
    store(&backend, (0..200).map(|_| job()).collect()).await;
    for leased in claim(&backend, 200).await {
        settle(&backend, &leased, Verdict::skip("no")).await;
    }
    let views = ended(&backend).await;
    assert_eq!(views.len(), 40);
    let times: Vec<_> = views.iter().map(|view| view.ended.as_ref().unwrap().at).collect();
    assert!(times.is_sorted_by(|a, b| a >= b));
    for view in &views {
        let one = JobRef::new(queue(), view.job.id);
        assert_eq!(backend.get(&one).await.unwrap().as_ref(), Some(view));
    }
    for order in [Order::Ascending, Order::Descending] {
        for limit in [7, 40, 100] {
            let mut listed = pages(&backend, order, limit).await;
            if order == Order::Ascending {
                listed.reverse();
            }
            assert_eq!(listed, views, "{order:?} {limit}");
        }
    }
    let kept = |n: u16| server.command(&["ZCARD", &format!("{{dq#4.{n}}}:ended:q")]).int();
    let kept: i64 = (0..4).map(kept).sum();
    assert!(kept > 40, "no job was hidden: the shards keep {kept}");
}

#[tokio::test]
async fn an_ended_job_of_a_queue_with_shards_is_read_without_the_others() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::default(), 4).await;
    let jobs: Vec<_> = (0..400).map(|_| job()).collect();
    store(&backend, jobs.clone()).await;
    while let leased = claim(&backend, 100).await
        && !leased.is_empty()
    {
        let done = leased.iter().map(|leased| Settlement::new(leased.lease(), Verdict::Done));
        backend.settle(&done.collect::<Vec<_>>()).await.unwrap();
    }
    let by_id = |job: &NewJob| JobRef::new(queue(), job.id);
    let mut sent = Vec::new();
    for reference in [by_id(&job()), by_id(&jobs[0])] {
        // A script's first call has two answers: `NOSCRIPT`, then its result.
        drop(backend.get(&reference).await.unwrap());
        let before = sent_bytes(&server);
        drop(backend.get(&reference).await.unwrap());
        sent.push(sent_bytes(&server) - before);
    }
    // A history entry is more than 20 bytes.
    assert!(sent[1] < sent[0] + 1_000, "{sent:?} bytes");
}

fn sent_bytes(server: &Redis) -> u64 {
    let info = server.command(&["INFO", "stats"]).text();
    let bytes = info.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    bytes.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_large_payload_of_a_next_step_marks_the_queue() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::default(), 1).await;
    store(&backend, vec![job()]).await;
    let leased = claim(&backend, 1).await.remove(0);
    let payload = Bytes::from(vec![b'x'; 100_000]);
    let again = Verdict::Again { due: Due::NOW, payload: payload.clone() };
    settle(&backend, &leased, again).await;
    assert_eq!(server.command(&["HGET", "{dq}:meta:q", "large"]).text(), "1");
    assert_eq!(claim(&backend, 1).await[0].job.payload, payload);
}
