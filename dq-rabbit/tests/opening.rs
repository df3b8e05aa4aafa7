//! Who opens a long log begins to read at the newest copy in it.

use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, Cancelled, Clock, Due, Entropy, Headers, JobRef, NewJob, OnConflict, QueueName,
    QueueStats, SystemClock,
};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};

/// Calls after which a copy is written, and some more.
const CALLS: usize = 5_200;

async fn open(server: &RabbitMq) -> RabbitBackend {
    let config = RabbitConfig::new(server.url());
    RabbitBackend::connect(&config, &Environment::default()).await.unwrap()
}

fn job(entropy: &Entropy, queue: &QueueName) -> NewJob {
    NewJob {
        id: entropy.job_id(SystemClock.now()),
        queue: queue.clone(),
        key: None,
        on_conflict: OnConflict::Keep,
        due: Due::After(Duration::from_secs(3_600)),
        payload: Bytes::from_static(b"payload"),
        headers: Headers::new(),
        max_attempts: None,
    }
}

/// The offsets that those who read the log have asked for.
fn asked_for(server: &RabbitMq) -> String {
    server.eval("iolist_to_binary(io_lib:format(\"~0p\", [ets:tab2list(consumer_created)]))")
}

async fn stats(backend: &RabbitBackend, queue: &QueueName) -> QueueStats {
    backend.stats(std::slice::from_ref(queue)).await.unwrap().remove(0)
}

/// Writes to the log as a process would that would begin to read it there.
async fn claim_to_begin_at(server: &RabbitMq, since: u8) {
    let connection =
        Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let message = [b'd', b'q', 1, 1, since, 0];
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default();
    let sent = channel.basic_publish("dq.v1.log".into(), "".into(), options, &message, properties);
    sent.await.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_begins_at_the_newest_copy() {
    let server = RabbitMq::start();
    let entropy = Entropy::from_os();
    let queue = QueueName::new("q").unwrap();
    let backend = open(&server).await;
    let kept: Vec<_> = (0..50).map(|_| job(&entropy, &queue)).collect();
    backend.schedule(kept).await.unwrap();
    for _ in 0..CALLS / 2 {
        let gone = job(&entropy, &queue);
        let name = JobRef::new(queue.clone(), gone.id);
        backend.schedule(vec![gone]).await.unwrap();
        assert_eq!(backend.cancel(&[name]).await.unwrap(), [Cancelled::Cancelled]);
    }
    let expected = stats(&backend, &queue).await;
    assert_eq!(expected.scheduled, 50);
    assert!(asked_for(&server).contains("first"), "{}", asked_for(&server));
    backend.close().await.unwrap();

    // Two, since the newest message that the second finds is that of a newcomer.
    for _ in 0..2 {
        let newcomer = open(&server).await;
        assert_eq!(stats(&newcomer, &queue).await, expected);
        assert!(!asked_for(&server).contains("first"), "{}", asked_for(&server));
        newcomer.close().await.unwrap();
    }

    // Whoever has not found out that the log was deleted may speak of another.
    for nonsense in [3, 120] {
        claim_to_begin_at(&server, nonsense).await;
        let newcomer = open(&server).await;
        assert_eq!(stats(&newcomer, &queue).await, expected);
        assert!(asked_for(&server).contains("first"), "{}", asked_for(&server));
        newcomer.close().await.unwrap();
    }
}
