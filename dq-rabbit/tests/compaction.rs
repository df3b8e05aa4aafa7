//! The broker deletes the beginning of the log, and no live data with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Clock, DeadKind, DeadReason, Due, Entropy,
    JobKey, JobRef, JobState, JobView, NewJob, Operation, QueueName, Settled, Settlement,
    SystemClock, Verdict, Want,
};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;

/// A delay, and a length of leases, that does not end during the test.
const LATER: Duration = Duration::from_secs(3_600);

async fn open(server: &RabbitMq) -> RabbitBackend {
    let mut config = RabbitConfig::new(server.url());
    // The smallest size that is allowed. A snapshot is due after 2 MiB.
    config.log_size_mib = 16;
    config.response_timeout = Duration::from_secs(60);
    RabbitBackend::connect(&config, &Environment::default()).await.unwrap()
}

fn job(entropy: &Entropy, queue: &QueueName, payload: Bytes) -> NewJob {
    NewJob::new(entropy.job_id(SystemClock.now()), queue.clone(), Due::After(LATER), payload)
}

/// The stats and all jobs of the queues.
async fn contents(backend: &RabbitBackend, queues: &[QueueName]) -> (String, Vec<JobView>) {
    let mut jobs = BTreeMap::new();
    for queue in queues {
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
            let mut after = None;
            loop {
                let params = BrowseParams { queue, state, after, limit: 1_000 };
                let page = backend.browse(params).await.unwrap();
                jobs.extend(page.jobs.into_iter().map(|view| (view.job.id, view)));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    (format!("{:?}", backend.stats(queues).await.unwrap()), jobs.into_values().collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_leases_outlive_the_beginning_of_the_log() {
    let server = RabbitMq::start();
    let entropy = Entropy::from_os();
    let backend = open(&server).await;
    let (old, dead, busy) = ("old", "dead", "busy");
    let queues = [old, dead, busy].map(|name| QueueName::new(name).unwrap());
    let [old, dead, busy] = &queues;

    // At the beginning of the log: jobs with a key and headers, a cancelled one, dead and leased
    // ones, and a paused queue.
    let mut first: Vec<_> = (0..300u32)
        .map(|n| job(&entropy, old, Bytes::from(format!("payload {n}").repeat(20))))
        .collect();
    first[7].key = Some(JobKey::new("seven").unwrap());
    first[8].headers.insert("colour", "red");
    backend.schedule(first.clone()).await.unwrap();
    let cancelled = JobRef::new(old.clone(), first[9].id);
    assert_eq!(backend.cancel(&[cancelled]).await.unwrap(), [Cancelled::Cancelled]);
    let mut dying: Vec<_> =
        (0..20).map(|n| job(&entropy, dead, Bytes::from(format!("dead {n}")))).collect();
    for job in &mut dying {
        job.due = Due::NOW;
    }
    backend.schedule(dying).await.unwrap();
    let wants = [Want { queue: dead.clone(), max: 20, lease_for: LATER }];
    let params = ClaimParams { wants: &wants, limit: 20, worker: "test" };
    let leased = backend.claim(params).await.unwrap().jobs;
    assert_eq!(leased.len(), 20);
    let reason = DeadReason::new(DeadKind::Rejected, "a test");
    let verdict = Verdict::Dead { reason, failed: true };
    let settlements: Vec<_> = leased[..15]
        .iter()
        .map(|leased| Settlement { lease: leased.lease(), verdict: verdict.clone() })
        .collect();
    backend.settle(&settlements).await.unwrap();
    backend.operate(Operation::Pause { queue: dead }).await.unwrap();
    let before = contents(&backend, &queues[..2]).await;
    assert_eq!(before.1.len(), 299 + 20);

    // 64 MB, four times as much as the broker keeps.
    for round in 0..32 {
        let jobs: Vec<_> =
            (0..20).map(|_| job(&entropy, busy, Bytes::from(vec![round; 100 * 1024]))).collect();
        let job_refs: Vec<_> = jobs.iter().map(|job| JobRef::new(busy.clone(), job.id)).collect();
        backend.schedule(jobs).await.unwrap();
        backend.cancel(&job_refs).await.unwrap();
    }
    assert_eq!(contents(&backend, &queues[..2]).await, before);

    // Once the broker has deleted the beginning, a process that starts cannot read it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while oldest_offset(&server).await == 0 {
        assert!(Instant::now() < deadline, "the broker has not deleted the beginning of the log");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let second = open(&server).await;
    assert_eq!(contents(&second, &queues[..2]).await, before);
    // Leases and fencing tokens are in the snapshot too.
    let settlement = Settlement { lease: leased[19].lease(), verdict: Verdict::Done };
    let settled = second.settle(&[settlement]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
    assert_eq!(backend.stats(&queues).await.unwrap(), second.stats(&queues).await.unwrap());
}

/// Offset of the oldest message of the log.
async fn oldest_offset(server: &RabbitMq) -> i64 {
    use futures_util::StreamExt;
    use lapin::types::{AMQPValue, FieldTable};
    let properties = lapin::ConnectionProperties::default();
    let connection = lapin::Connection::connect(&server.url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(1, lapin::options::BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("first".into()));
    let mut consumer = channel
        .basic_consume("dq.v1.log".into(), "".into(), Default::default(), arguments)
        .await
        .unwrap();
    let first = consumer.next().await.unwrap().unwrap();
    let headers = first.properties.headers().as_ref().unwrap();
    match headers.inner().get("x-stream-offset") {
        Some(AMQPValue::LongLongInt(offset)) => *offset,
        other => panic!("no offset: {other:?}"),
    }
}
