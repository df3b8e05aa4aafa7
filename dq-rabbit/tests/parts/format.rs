//! Messages of the log that a newer version or another program has written.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, DeadKind, ErrorKind, Headers, HistoryLimit, HistoryLimits, Job, Operation, Scheduled,
    Timestamp,
};
use dq_testkit::fixture::{by_id, claim_for, job, stats, wait_until};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation};

use super::fixture::{assert_error, config, connect, finding, queue};
use crate::RabbitBackend;
use crate::config::{QueueKind, RabbitConfig};
use crate::connect::AmqpConnection;
use crate::log::wire::tests::unknown_entry;
use crate::log::wire::{
    Checksum, Command, Entry, Payload, SnapshotEntry, SnapshotJob, SnapshotJobState, SnapshotPart,
    encode,
};

fn classic(vhost: &str) -> RabbitConfig {
    let mut config = config(vhost);
    config.queues = QueueKind::Classic;
    config
}

async fn open(config: &RabbitConfig) -> dq_core::Result<Arc<RabbitBackend>> {
    RabbitBackend::connect(config, &Environment::default()).await.map(Arc::new)
}

async fn append(connection: &AmqpConnection, message: &[u8]) {
    let channel = connection.channel("test").await.unwrap().inner().clone();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default();
    let generations = "dq.v1.generations".into();
    let sent = channel.basic_publish(generations, "0".into(), options, message, properties);
    assert_eq!(sent.await.unwrap().await.unwrap(), Confirmation::Ack(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_no_entries_are_skipped_and_reported() {
    let config = classic("skipped");
    let backend = open(&config).await.unwrap();
    let connection = connect(&config);
    backend.schedule(vec![job("q")]).await.unwrap();
    let mut damaged = unknown_entry(0);
    damaged[4] ^= 1;
    for message in [b"foreign", &damaged[..], &unknown_entry(0)] {
        append(&connection, message).await;
    }
    let scheduled = backend.schedule(vec![job("q")]).await.unwrap();
    assert!(matches!(scheduled[..], [Scheduled::Created(_)]));
    let other = open(&config).await.unwrap();
    for backend in [&backend, &other] {
        assert_eq!(backend.stats(&[queue("q")]).await.unwrap()[0].ready, 2);
        let cause = finding(backend, "rabbitmq.log-skipped").await.expect("a finding").cause;
        assert!(cause.starts_with("1 foreign and 1 damaged messages"), "{cause}");
        backend.close().await.unwrap();
    }
}

/// A snapshot without a job's payload, or with another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_its_payload_is_dead_and_never_runs_with_another() {
    let config = classic("lost-payload");
    // A history would remember the id.
    let mut environment = Environment::default();
    environment.history = HistoryLimits::all(HistoryLimit::OFF);
    let backend = RabbitBackend::connect(&config, &environment).await.unwrap();
    let connection = connect(&config);
    let new = job("q");
    let name = new.queue.clone();
    let checksum = Checksum::of(&new.payload);
    // So that nobody claims it before the snapshot is read.
    backend.operate(Operation::Pause { queue: &name }).await.unwrap();
    let other = Payload::from(bytes::Bytes::from_static(b"other"));
    for (sequence, payload) in (1..).zip([Payload::lost(checksum), other]) {
        backend.schedule(vec![new.clone()]).await.unwrap();
        let stored = Job::new(new.id, name.clone(), Timestamp::EPOCH, Timestamp::EPOCH, "".into());
        let snapshot_job = SnapshotJob {
            job: (&stored).into(),
            seq: 1,
            state: SnapshotJobState::Waiting,
            notes: None,
            payload,
            headers: Headers::new(),
        };
        let part = SnapshotPart::Jobs(vec![snapshot_job]);
        // As if the snapshot had begun after the job was stored.
        let command = Command::Snapshot(SnapshotEntry::Part { begin: 1_000, number: 0, part });
        let entry = Entry { producer_id: 7, sequence, at: Timestamp::EPOCH, command };
        append(&connection, &encode(&[entry])).await;
        // A listing shows no payload, and `check` reports it.
        let lost = async || finding(&backend, "rabbitmq.payload-lost").await.expect("a finding");
        wait_until("the snapshot is read", async || {
            backend.get(&by_id(&new)).await.unwrap().unwrap().job.payload.is_empty()
        })
        .await;
        assert!(lost().await.cause.contains("1 jobs"));

        backend.operate(Operation::Resume { queue: &name }).await.unwrap();
        let mut quarantined = Vec::new();
        wait_until("the job is dead", async || {
            let claimed = claim_for(&backend, &["q"], 9, Duration::from_secs(60)).await.unwrap();
            assert!(claimed.jobs.is_empty(), "{claimed:?}");
            quarantined.extend(claimed.quarantined);
            stats(&backend, "q").await.dead == 1
        })
        .await;
        let dead = backend.get(&by_id(&new)).await.unwrap().unwrap();
        let reason = dead.dead.unwrap().0;
        assert_eq!(reason.kind, DeadKind::Quarantined);
        let [(job, reported)] = &quarantined[..] else { panic!("{quarantined:?}") };
        assert_eq!((job.id, reported), (new.id, &reason));
        assert!(lost().await.cause.contains(&new.id.to_string()));
        backend.operate(Operation::Remove { queue: &name, jobs: &[new.id] }).await.unwrap();
        backend.operate(Operation::Pause { queue: &name }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_must_be_understood_stops_all_calls() {
    let config = classic("must-understand");
    let backend = open(&config).await.unwrap();
    append(&connect(&config), &unknown_entry(1)).await;
    let name = queue("q");
    let pause = || backend.operate(Operation::Pause { queue: &name });
    wait_until("the entry is read", async || pause().await.is_err()).await;
    let remedy = ["kind 1000", "newer"];
    assert_error(pause().await, ErrorKind::Incompatible, &remedy);
    assert_error(open(&config).await, ErrorKind::Incompatible, &remedy);
    assert_error(backend.close().await, ErrorKind::Incompatible, &remedy);
}
