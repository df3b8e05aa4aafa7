//! A process that opens a long log starts to read at the newest snapshot in it.

use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, Cancelled, Clock, Due, Entropy, JobRef, NewJob, QueueName, QueueStats, SystemClock,
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

/// More calls than fit between two snapshots: one is due after 5000 messages.
const CALLS: usize = 5_200;

async fn open(server: &RabbitMq) -> RabbitBackend {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(10);
    RabbitBackend::connect(&config, &Environment::default()).await.unwrap()
}

fn job(entropy: &Entropy, queue: &QueueName) -> NewJob {
    let due = Due::After(Duration::from_secs(3_600));
    let payload = Bytes::from_static(b"payload");
    NewJob::new(entropy.job_id(SystemClock.now()), queue.clone(), due, payload)
}

/// The consumers of the broker, with the offsets at which they started.
///
/// The table serves the broker's statistics: entries of closed channels may stay for minutes and
/// are left out.
fn consumers(server: &RabbitMq) -> String {
    server.eval(
        "Living = [Consumer || {{_, Channel, _}, _, _, _, _, _, _} = Consumer \
                       <- ets:tab2list(consumer_created), is_process_alive(Channel)], \
         iolist_to_binary(io_lib:format(\"~0p\", [Living])).",
    )
}

async fn stats(backend: &RabbitBackend, queue: &QueueName) -> QueueStats {
    backend.stats(std::slice::from_ref(queue)).await.unwrap().remove(0)
}

/// A foreign process that writes to the log.
struct ForeignWriter {
    _connection: Connection,
    channel: Channel,
}

impl ForeignWriter {
    async fn new(server: &RabbitMq) -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&server.url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { _connection: connection, channel }
    }

    async fn append(&self, body: &[u8]) {
        let message = [b"dq\x01", body].concat();
        let (log, options) = ("dq.v1.log".into(), BasicPublishOptions::default());
        let properties = BasicProperties::default();
        let sent = self.channel.basic_publish(log, "".into(), options, &message, properties);
        sent.await.unwrap().await.unwrap();
    }

    /// Appends an empty batch that names this offset as the one to replay from: `1`, the offset as
    /// a varint, and `0` entries.
    async fn append_hint(&self, replay_from: u64) {
        let mut body = vec![1];
        let mut rest = replay_from;
        while rest > 0x7f {
            body.push(0x80 | (rest & 0x7f) as u8);
            rest >>= 7;
        }
        body.extend([rest as u8, 0]);
        self.append(&body).await;
    }

    /// Offset of the newest message.
    async fn newest_offset(&self) -> u64 {
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
async fn reading_starts_at_the_newest_snapshot() {
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
    let expected = stats(&backend, &queue).await;
    assert_eq!(expected.scheduled, 50);
    assert!(consumers(&server).contains("first"), "{}", consumers(&server));
    backend.close().await.unwrap();
    wait_for_no_consumer(&server).await;

    // Twice, because the newest message that the second process finds was written by the first
    // before it knew the state.
    for _ in 0..2 {
        assert_start(&server, &queue, &expected, Start::Snapshot).await;
    }

    // Hints may be wrong: their writers may not have noticed that the log was replaced.
    let foreign = ForeignWriter::new(&server).await;
    foreign.append_hint(3).await;
    assert_start(&server, &queue, &expected, Start::First).await;
    foreign.append_hint(1_000_000).await;
    assert_start(&server, &queue, &expected, Start::Snapshot).await;
    // A broker that lost its newest messages may have lost the end of a snapshot. This batch only
    // begins one: `0` without a hint, `1` entry, producer 5, sequence number 1, time 0, command 9
    // (a snapshot), part 0 (its beginning).
    foreign.append(&[0, 1, 5, 1, 0, 9, 0]).await;
    foreign.append_hint(foreign.newest_offset().await).await;
    assert_start(&server, &queue, &expected, Start::First).await;
}

/// Where a process starts to read.
#[derive(Debug, PartialEq)]
enum Start {
    /// At the first message of the log.
    First,
    /// At a snapshot.
    Snapshot,
}

/// Opens the log and checks where reading started, and that the state is right.
async fn assert_start(server: &RabbitMq, queue: &QueueName, expected: &QueueStats, start: Start) {
    let backend = open(server).await;
    assert_eq!(stats(&backend, queue).await, *expected);
    let consumers = consumers(server);
    assert_eq!(consumers.contains("first"), start == Start::First, "{consumers}");
    backend.close().await.unwrap();
    wait_for_no_consumer(server).await;
}

/// Waits until the broker has removed the consumers of closed backends.
async fn wait_for_no_consumer(server: &RabbitMq) {
    for _ in 0..3_000 {
        if !consumers(server).contains("dq.v1.log") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("there are consumers still: {}", consumers(server));
}
