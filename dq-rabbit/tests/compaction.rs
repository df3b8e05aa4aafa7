//! The oldest generation of the log is deleted, and no live data with it.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests also act on the broker without the backend, as other programs do"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Clock, DeadKind, DeadReason, Due, Entropy,
    ErrorKind, JobKey, JobRef, JobState, JobView, NewJob, Operation, QueueName, Settled,
    Settlement, SystemClock, Verdict, Want,
};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;

/// A delay, and a length of leases, that does not end during the test.
const LATER: Duration = Duration::from_secs(3_600);

async fn open(server: &RabbitMq) -> RabbitBackend {
    let mut config = RabbitConfig::new(server.url());
    // The smallest size that is allowed. A generation is closed after 2 MiB.
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
                let params =
                    BrowseParams::new(queue, state).after(after).limit(1_000).payloads(true);
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
async fn jobs_and_leases_survive_the_deletion_of_the_first_generation() {
    let server = RabbitMq::start();
    let entropy = Entropy::from_os();
    let backend = open(&server).await;
    assert!(has_first_generation(&server).await);
    let (old, dead, busy) = ("old", "dead", "busy");
    let queues = [old, dead, busy].map(|name| QueueName::new(name).unwrap());
    let [old, dead, busy] = &queues;

    // In the first generation: jobs with a key and headers, a cancelled one, dead and leased
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
    let wants = [Want::new(dead.clone(), 20, LATER)];
    let params = ClaimParams::new(&wants, 20, "test");
    let leased = backend.claim(params).await.unwrap().jobs;
    assert_eq!(leased.len(), 20);
    let reason = DeadReason::new(DeadKind::Rejected, "a test");
    let verdict = Verdict::Dead { reason, failed: true };
    let settlements: Vec<_> = leased[..15]
        .iter()
        .map(|leased| Settlement::new(leased.lease(), verdict.clone()))
        .collect();
    backend.settle(&settlements).await.unwrap();
    backend.operate(Operation::Pause { queue: dead }).await.unwrap();
    let before = contents(&backend, &queues[..2]).await;
    assert_eq!(before.1.len(), 299 + 20);

    // 64 MB, four times as much as the log should have.
    for round in 0..32 {
        let jobs: Vec<_> =
            (0..20).map(|_| job(&entropy, busy, Bytes::from(vec![round; 100 * 1024]))).collect();
        let job_refs: Vec<_> = jobs.iter().map(|job| JobRef::new(busy.clone(), job.id)).collect();
        backend.schedule(jobs).await.unwrap();
        backend.cancel(&job_refs).await.unwrap();
    }
    assert_eq!(contents(&backend, &queues[..2]).await, before);

    // Once the first generation is deleted, which is at most two minutes after the snapshot of the next one, a
    // process that starts cannot read it.
    let deadline = Instant::now() + Duration::from_secs(300);
    while has_first_generation(&server).await {
        assert!(Instant::now() < deadline, "the first generation of the log is still there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let second = open(&server).await;
    assert_eq!(contents(&second, &queues[..2]).await, before);
    // Leases and fencing tokens are in the snapshot too.
    let settlement = Settlement::new(leased[19].lease(), Verdict::Done);
    let settled = second.settle(&[settlement]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
    assert_eq!(backend.stats(&queues).await.unwrap(), second.stats(&queues).await.unwrap());
}

/// The payloads of all jobs of a queue in this state.
async fn payloads(backend: &RabbitBackend, queue: &QueueName, state: JobState) -> Vec<Bytes> {
    let params = BrowseParams::new(queue, state).limit(10_000).payloads(true);
    let page = backend.browse(params).await.unwrap();
    page.jobs.into_iter().map(|view| view.job.payload).collect()
}

/// Two processes write far more than the log can hold, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_beyond_the_log_is_refused_and_loses_no_payload() {
    const PAYLOAD: usize = 512 * 1024;
    let server = RabbitMq::start();
    let entropy = Arc::new(Entropy::from_os());
    let processes = [Arc::new(open(&server).await), Arc::new(open(&server).await)];
    let name = QueueName::new("q").unwrap();
    // One has room.
    let first = Bytes::from(vec![0; PAYLOAD]);
    processes[1].schedule(vec![job(&entropy, &name, first.clone())]).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 1..60_u8 {
        let process = Arc::clone(&processes[usize::from(number) % 2]);
        let job = job(&entropy, &name, Bytes::from(vec![number; PAYLOAD]));
        calls.spawn(async move { process.schedule(vec![job]).await.map(|_| number) });
    }
    let mut accepted = vec![first];
    while let Some(called) = calls.join_next().await {
        match called.unwrap() {
            Ok(number) => accepted.push(Bytes::from(vec![number; PAYLOAD])),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
        }
    }
    // The log takes a fifth of its 16 MiB.
    assert!((2..=6).contains(&accepted.len()), "{} jobs of 512 KiB", accepted.len());
    // A process that starts finds all that was accepted, as it was.
    let fresh = open(&server).await;
    let sorted = |mut payloads: Vec<Bytes>| {
        payloads.sort();
        payloads
    };
    let found = sorted(payloads(&fresh, &name, JobState::Scheduled).await);
    assert!(found == sorted(accepted), "{} payloads differ", found.len());
    // What is left of the room.
    let full = loop {
        let small = job(&entropy, &name, Bytes::from(vec![8; 64 * 1024]));
        if let Err(error) = fresh.schedule(vec![small]).await {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let is_reported = async || {
        let findings = fresh.check().await;
        findings.iter().any(|finding| finding.code == "rabbitmq.log-full")
    };
    assert!(is_reported().await);
    // What frees the log always passes.
    fresh.operate(Operation::Purge { queue: &name }).await.unwrap();
    assert!(!is_reported().await);
}

async fn has_first_generation(server: &RabbitMq) -> bool {
    let properties = lapin::ConnectionProperties::default();
    let connection = lapin::Connection::connect(&server.url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = lapin::options::QueueDeclareOptions::durable().passive();
    let declared = channel.queue_declare("dq.v1.log.0".into(), options, Default::default()).await;
    match declared {
        Ok(_) => true,
        Err(error) => {
            assert!(error.to_string().contains("NOT_FOUND"), "{error}");
            false
        }
    }
}
