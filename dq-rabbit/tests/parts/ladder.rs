//! The delay ladder of a real broker.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};

use super::fixture::{config, declare_all, queue, topology};
use crate::config::QueueKind;
use crate::topology::ladder::queues;
use crate::topology::names::{LEVELS, Topic};

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
