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
use futures_util::StreamExt;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

/// Calls after which a copy is written, and some more.
const CALLS: usize = 5_200;

async fn open(server: &RabbitMq) -> RabbitBackend {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(10);
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
///
/// The broker's table of consumers is for its statistics: of a channel that was closed with its
/// connection, an entry may stay until the broker cleans up, minutes later. Those are passed over.
fn asked_for(server: &RabbitMq) -> String {
    server.eval(
        "Living = [Consumer || {{_, Channel, _}, _, _, _, _, _, _} = Consumer \
                       <- ets:tab2list(consumer_created), is_process_alive(Channel)], \
         iolist_to_binary(io_lib:format(\"~0p\", [Living])).",
    )
}

async fn stats(backend: &RabbitBackend, queue: &QueueName) -> QueueStats {
    backend.stats(std::slice::from_ref(queue)).await.unwrap().remove(0)
}

/// A stranger who writes to the log.
struct Stranger {
    _connection: Connection,
    channel: Channel,
}

impl Stranger {
    async fn new(server: &RabbitMq) -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&server.url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { _connection: connection, channel }
    }

    async fn write(&self, body: &[u8]) {
        let message = [b"dq\x01", body].concat();
        let (log, options) = ("dq.v1.log".into(), BasicPublishOptions::default());
        let properties = BasicProperties::default();
        let sent = self.channel.basic_publish(log, "".into(), options, &message, properties);
        sent.await.unwrap().await.unwrap();
    }

    /// Writes what a process would write that would begin to read there.
    async fn speak_of(&self, since: u64) {
        let mut body = vec![1];
        let mut rest = since;
        while rest > 0x7f {
            body.push(0x80 | (rest & 0x7f) as u8);
            rest >>= 7;
        }
        body.extend([rest as u8, 0]);
        self.write(&body).await;
    }

    /// Where the newest message stands.
    async fn newest(&self) -> u64 {
        let channel = &self.channel;
        channel.basic_qos(10, BasicQosOptions::default()).await.unwrap();
        let mut arguments = FieldTable::default();
        arguments.insert("x-stream-offset".into(), AMQPValue::LongString("last".into()));
        let (log, options) = ("dq.v1.log".into(), BasicConsumeOptions::default());
        let consuming = channel.basic_consume(log, "newest".into(), options, arguments);
        let mut consumer = consuming.await.unwrap();
        let newest = consumer.next().await.unwrap().unwrap();
        channel.basic_cancel("newest".into(), BasicCancelOptions::default()).await.unwrap();
        match newest.properties.headers().as_ref().unwrap().inner().get("x-stream-offset") {
            Some(AMQPValue::LongLongInt(offset)) => offset.unsigned_abs(),
            other => panic!("no offset: {other:?}"),
        }
    }
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
    nobody_reads(&server).await;

    // Two, since the newest message that the second finds is that of a newcomer.
    for _ in 0..2 {
        begins(&server, &queue, &expected, At::Copy).await;
    }

    // Whoever has not found out that the log was deleted may speak of another.
    let stranger = Stranger::new(&server).await;
    stranger.speak_of(3).await;
    begins(&server, &queue, &expected, At::Oldest).await;
    stranger.speak_of(1_000_000).await;
    begins(&server, &queue, &expected, At::Copy).await;
    // And a broker that lost its newest messages may have lost the end of a copy: an entry of origin 5
    // that begins one, and nothing else.
    stranger.write(&[0, 1, 5, 1, 0, 9, 0]).await;
    stranger.speak_of(stranger.newest().await).await;
    begins(&server, &queue, &expected, At::Oldest).await;
}

#[derive(Debug, PartialEq)]
enum At {
    Oldest,
    Copy,
}

/// Where a newcomer begins, who has to know all in the end.
async fn begins(server: &RabbitMq, queue: &QueueName, expected: &QueueStats, at: At) {
    let newcomer = open(server).await;
    assert_eq!(stats(&newcomer, queue).await, *expected);
    let asked = asked_for(server);
    assert_eq!(asked.contains("first"), at == At::Oldest, "{asked}");
    newcomer.close().await.unwrap();
    nobody_reads(server).await;
}

/// The broker may take a moment to forget who has gone.
async fn nobody_reads(server: &RabbitMq) {
    for _ in 0..3_000 {
        if !asked_for(server).contains("dq.v1.log") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("still there: {}", asked_for(server));
}
