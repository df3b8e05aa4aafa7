//! The delay ladder of a real broker.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dq_core::Timestamp;
use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};

use super::fixture::{config, declare_all, queue, topology};
use crate::config::QueueKind;
use crate::topology::ladder::{TICK_MS, guard_ms, queues};
use crate::topology::names::{LEVELS, Topic};

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

/// Returns, in ascending order, how many milliseconds early each message came.
async fn measure_early_ms(vhost: &str, kind: QueueKind) -> Vec<i64> {
    const JOBS: i64 = 60;
    let mut config = config(vhost);
    config.queues = kind;
    let (connection, topology) = topology(&config);
    declare_all(&topology).await.unwrap();
    let queue = queue("mail.#");
    let topic = Topic::of(&queue);
    topology.declare_ready(&queue).await.unwrap();
    let ladder = topology.ladder();

    let channel = connection.channel("test").await.unwrap().inner().clone();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let mut confirms = Vec::new();
    for job in 0..JOBS {
        let now = now();
        let due = Timestamp::from_millis(now.as_millis() + 300 + job * 5700 / JOBS);
        let route = ladder.route(&topic, due, now);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = BasicProperties::default().with_delivery_mode(2);
        let body = due.as_millis().to_be_bytes();
        confirms.push(
            channel
                .basic_publish(route.exchange, route.routing_key, options, &body, properties)
                .await
                .unwrap(),
        );
    }
    for confirm in confirms {
        assert_eq!(confirm.await.unwrap(), Confirmation::Ack(None));
    }
    let consuming = connection.channel("test").await.unwrap().inner().clone();
    consuming.basic_qos(1000, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let ready = topology.names().ready(&topic);
    let mut consumer =
        consuming.basic_consume(ready, "".into(), options, FieldTable::default()).await.unwrap();
    let mut early = Vec::new();
    for _ in 0..JOBS {
        let next = tokio::time::timeout(Duration::from_secs(60), consumer.next()).await;
        let delivery = next.expect("no message is lost").unwrap().unwrap();
        let due = i64::from_be_bytes(delivery.data.as_slice().try_into().unwrap());
        early.push(due - now().as_millis());
    }
    early.sort_unstable();
    early
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_delivered_a_little_before_they_are_due() {
    for (vhost, kind) in
        [("ladder-quorum", QueueKind::Quorum), ("ladder-classic", QueueKind::Classic)]
    {
        let early = measure_early_ms(vhost, kind).await;
        let (min, median, max) = (early[0], early[early.len() / 2], early[early.len() - 1]);
        println!("{kind:?}: {min} to {max} ms early, median {median}");
        // How late a message is depends on the machine.
        assert!(max <= TICK_MS + guard_ms(kind), "{kind:?}: {early:?}");
        assert!(min > -30_000, "{kind:?}: {early:?}");
    }
}

async fn count(channel: &Channel, queue: ShortString) -> u32 {
    let options = QueueDeclareOptions::durable().passive();
    channel.queue_declare(queue, options, FieldTable::default()).await.unwrap().message_count()
}

async fn publish(channel: &Channel, exchange: ShortString, key: String) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let published = channel
        .basic_publish(exchange, key.into(), options, b"x", BasicProperties::default())
        .await
        .unwrap();
    assert_eq!(published.await.unwrap(), Confirmation::Ack(None));
}

/// Ones on lower levels, zeros on higher ones.
fn routing_key(level: usize, digit: u32, topic: &str) -> String {
    let mut key = String::new();
    for other in 0..LEVELS {
        let digit = match other.cmp(&level) {
            std::cmp::Ordering::Greater => 0,
            std::cmp::Ordering::Equal => digit,
            std::cmp::Ordering::Less => 1,
        };
        key.push_str(&format!("{digit}."));
    }
    key + topic
}

#[tokio::test(flavor = "multi_thread")]
async fn every_digit_has_its_queue_and_zeros_are_skipped() {
    let mut config = config("digits");
    config.queues = QueueKind::Classic;
    let (connection, topology) = topology(&config);
    declare_all(&topology).await.unwrap();
    let queue = queue("mail");
    topology.declare_ready(&queue).await.unwrap();
    let names = topology.names();
    let channel = connection.channel("test").await.unwrap().inner().clone();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();

    // These queues still hold the messages when they are counted.
    let top = names.level(LEVELS - 1);
    for entry in queues(QueueKind::Classic).filter(|entry| entry.level >= 2) {
        let key = routing_key(entry.level, entry.digit, "mail");
        publish(&channel, top.clone(), key.clone()).await;
        publish(&channel, names.level(entry.level), key).await;
        let waiting = count(&channel, names.ladder_queue(entry.level, entry.digit)).await;
        assert_eq!(waiting, 2, "{entry:?}");
    }
    publish(&channel, top.clone(), routing_key(0, 0, "mail")).await;
    assert_eq!(count(&channel, names.ready(&Topic::of(&queue))).await, 1);

    // No binding: digits beyond a level's largest, and a topic without a queue.
    for (exchange, key) in [
        (top.clone(), "0.0.0.0.0.10.mail"),
        (names.level(0), "60.mail"),
        (names.due(), "letter"),
        (top, "0.0.0.0.0.0.letter"),
    ] {
        publish(&channel, exchange, key.to_owned()).await;
    }
    assert_eq!(count(&channel, names.orphan()).await, 4);
}
