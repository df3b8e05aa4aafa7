//! Messages that arrive too early are published again.

use std::time::Duration;

use dq_core::{Cancelled, Due, Reschedule, Rescheduled};
use dq_servers::shared_rabbitmq;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};

use crate::fixture::{
    after, amqp_client, by_id, config, job, open, publish, start_runner, stats, take_message,
    wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_message_that_are_not_due_are_published_again() {
    /// With some minutes, so that the first queue is still the hour's later in the test.
    const HOUR: u64 = 3_600_000 + 300_000;
    let config = config("together");
    let backend = open(&config).await;
    let all = [0, 100_000, 100_000, 150_000].map(|apart| after(HOUR + apart, job("q")));
    backend.schedule(all.to_vec()).await.unwrap();
    let [first, _second, cancelled, moved] = all;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    // Four quarters of an hour.
    let hour = "dq.v1.l2.4";
    let jobs = |message: &Delivery| {
        let headers = message.properties.headers().as_ref().expect("the message has headers");
        headers.inner().get("dq-jobs").cloned()
    };
    let message = take_message(&channel, &[hour]).await;
    assert_eq!(jobs(&message), Some(AMQPValue::LongLongInt(4)));
    let second = channel.basic_get(hour.into(), BasicGetOptions { no_ack: true });
    assert!(second.await.unwrap().is_none());

    assert_eq!(backend.cancel(&[by_id(&cancelled)]).await.unwrap(), [Cancelled::Cancelled]);
    let later = Due::After(Duration::from_millis(2 * HOUR));
    let moves = [Reschedule { job: by_id(&moved), due: later }];
    assert!(matches!(backend.reschedule(&moves).await.unwrap()[..], [Rescheduled::Moved(_)]));

    // As the ladder does after an hour, with a header of the broker.
    let _runner = start_runner(&backend, "q").await;
    let key = message.routing_key.as_str();
    let mut headers = message.properties.headers().clone().unwrap_or_default();
    headers.insert("x-death".into(), AMQPValue::FieldArray(FieldArray::default()));
    let properties = message.properties.clone().with_headers(headers);
    publish(&channel, "dq.v1.due", key, &message.data, properties).await;

    let back = take_message(&channel, &[hour]).await;
    assert_eq!(jobs(&back), Some(AMQPValue::LongLongInt(2)));
    let headers = back.properties.headers().as_ref().unwrap().inner();
    assert!(!headers.contains_key("x-death"), "the broker would see a cycle");
    assert_eq!(back.properties.message_id().as_ref().unwrap().as_str(), first.id.to_string());
    let other = take_message(&channel, &["dq.v1.l2.8"]).await;
    assert_eq!(jobs(&other), Some(AMQPValue::LongLongInt(1)));
    assert_eq!(other.properties.message_id().as_ref().unwrap().as_str(), moved.id.to_string());
    assert_eq!(stats(&*backend, "q").await.scheduled, 3);
    wait_until("the ready queue is empty", async || {
        let list = ["list_queues", "-q", "-p", "together", "name", "messages"];
        let queues = shared_rabbitmq().ctl(&list);
        queues.lines().any(|line| line.split_whitespace().eq(["dq.v1.q.q", "0"]))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_messages_are_kept_and_block_no_other_message() {
    let config = config("orphans");
    let backend = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    // They match no binding and are ahead of the job messages.
    for n in 0..100 {
        let key = format!("1.nobody{n}");
        publish(&channel, "dq.v1.l0", &key, b"x", BasicProperties::default()).await;
    }
    let unserved: Vec<_> = (0..20).map(|_| after(1_300, job("unserved"))).collect();
    backend.schedule(unserved.clone()).await.unwrap();
    let jobs: Vec<_> = (0..20).map(|_| after(1_300, job("q"))).collect();
    backend.schedule(jobs.clone()).await.unwrap();
    runner.expect_each_once(&jobs).await;
    wait_until("the unroutable messages are in the orphan queue", async || {
        let options = QueueDeclareOptions::durable().passive();
        let orphans = channel.queue_declare("dq.v1.orphan".into(), options, FieldTable::default());
        orphans.await.unwrap().message_count() == 100
    })
    .await;
    wait_until("the jobs are due", async || stats(&*backend, "unserved").await.ready == 20).await;
    let mut runner = start_runner(&backend, "unserved").await;
    runner.expect_each_once(&unserved).await;
}
