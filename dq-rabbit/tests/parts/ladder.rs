//! Messages walk down a real ladder and come back in time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dq_core::Timestamp;
use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation};

use super::rig::{config, queue, topology};
use crate::config::QueueKind;
use crate::ladder::Ladder;
use crate::names::Topic;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

/// Publishes jobs of 0.3 to 3 seconds, and returns by how many milliseconds each came before it was
/// due.
async fn walk(vhost: &str, kind: QueueKind) -> Vec<i64> {
    const JOBS: i64 = 60;
    let mut config = config(vhost);
    config.queues = kind;
    let (link, topology) = topology(&config);
    topology.prepare().await.unwrap();
    let queue = queue("mail.#");
    let topic = Topic::of(&queue);
    topology.ready(&queue).await.unwrap();
    let ladder = topology.ladder();

    let channel = link.channel("test").await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let mut confirms = Vec::new();
    for job in 0..JOBS {
        let now = now();
        let due = Timestamp::from_millis(now.as_millis() + 300 + job * 2700 / JOBS);
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
    let inbox = link.channel("test").await.unwrap();
    inbox.basic_qos(1000, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let ready = topology.names().ready(&topic);
    let mut consumer =
        inbox.basic_consume(ready, "".into(), options, FieldTable::default()).await.unwrap();
    let mut early = Vec::new();
    for _ in 0..JOBS {
        let next = tokio::time::timeout(Duration::from_secs(10), consumer.next()).await;
        let delivery = next.expect("a message is lost").unwrap().unwrap();
        let due = i64::from_be_bytes(delivery.data.as_slice().try_into().unwrap());
        early.push(due - now().as_millis());
    }
    early.sort_unstable();
    early
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_come_back_a_little_before_they_are_due() {
    for (vhost, kind) in
        [("ladder-quorum", QueueKind::Quorum), ("ladder-classic", QueueKind::Classic)]
    {
        // Only a machine that does something else makes them late; nothing may make them early.
        let mut punctual = false;
        for _ in 0..4 {
            let early = walk(vhost, kind).await;
            let (least, most) = (early[0], early[early.len() - 1]);
            println!("{kind:?}: between {least} and {most} ms early");
            assert!(most <= Ladder::early_ms(kind), "{kind:?}: {early:?}");
            punctual = least >= 0;
            if punctual {
                break;
            }
        }
        assert!(punctual, "{kind:?}: late four times");
    }
}
