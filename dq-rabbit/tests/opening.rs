//! A process that opens a long log starts to read at the newest generation.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests also act on the broker without the backend, as other programs do"
)]

use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, Cancelled, Clock, Due, Entropy, JobRef, NewJob, QueueName, QueueStats, SystemClock,
};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;
use dq_testkit::fixture::TIMEOUT;
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};

/// More calls than fit into a generation: one is closed after 5000 messages.
const CALLS: usize = 5_200;

async fn open(server: &RabbitMq) -> RabbitBackend {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(60);
    RabbitBackend::connect(&config, &Environment::default()).await.unwrap()
}

fn job(entropy: &Entropy, queue: &QueueName) -> NewJob {
    let due = Due::After(Duration::from_secs(3_600));
    let payload = Bytes::from_static(b"payload");
    NewJob::new(entropy.job_id(SystemClock.now()), queue.clone(), due, payload)
}

async fn stats(backend: &RabbitBackend, queue: &QueueName) -> QueueStats {
    backend.stats(std::slice::from_ref(queue)).await.unwrap().remove(0)
}

/// Waits until the directory of the log says that its second stream is complete, and deletes the
/// first.
async fn delete_first_stream(server: &RabbitMq) {
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(&server.url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.basic_qos(100, BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("first".into()));
    let options = BasicConsumeOptions::default();
    let consuming = channel.basic_consume("dq.v1.log".into(), "".into(), options, arguments);
    let mut records = consuming.await.unwrap();
    let named = async {
        while let Some(record) = records.next().await {
            let record = record.unwrap();
            record.ack(BasicAckOptions::default()).await.unwrap();
            // Magic and format, `1` for the newest generation, and its number.
            if record.data.starts_with(b"DQ\x01\x01\x01") {
                return;
            }
        }
        panic!("the consumer was cancelled");
    };
    tokio::time::timeout(TIMEOUT, named).await.expect("the second stream is complete");
    let first = "dq.v1.log.0".into();
    channel.queue_delete(first, QueueDeleteOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_starts_at_the_newest_generation() {
    let server = RabbitMq::start();
    let entropy = Entropy::from_os();
    let queue = QueueName::new("q").unwrap();
    let backend = open(&server).await;
    let kept: Vec<_> = (0..50).map(|_| job(&entropy, &queue)).collect();
    backend.schedule(kept).await.unwrap();
    for _ in 0..CALLS / 2 {
        let cancelled = job(&entropy, &queue);
        let job_ref = JobRef::new(queue.clone(), cancelled.id);
        backend.schedule(vec![cancelled]).await.unwrap();
        assert_eq!(backend.cancel(&[job_ref]).await.unwrap(), [Cancelled::Cancelled]);
    }
    delete_first_stream(&server).await;
    let expected = stats(&backend, &queue).await;
    assert_eq!(expected.scheduled, 50);

    let fresh = open(&server).await;
    assert_eq!(stats(&fresh, &queue).await, expected);
}
