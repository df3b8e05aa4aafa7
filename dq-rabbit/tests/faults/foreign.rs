//! Messages that other programs publish to the backend's queues, or take from them.

use dq_rabbit::RabbitConfig;
use lapin::BasicProperties;
use lapin::options::QueueDeleteOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::fixture::{
    after, amqp_client, config, job, open, publish, queue_exists, start_runner, take_message,
    wait_until,
};

/// The queue may be declared after the call that schedules the first job.
async fn wait_for_queue(config: &RabbitConfig, name: &str) {
    wait_until(&format!("{name} exists"), async || queue_exists(config, name).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_message_goes_to_the_dead_letter_queue_as_it_is() {
    let config = config("foreign");
    let backend = open(&config).await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    // The runner restores the queue.
    channel.queue_delete("dq.v1.dead".into(), QueueDeleteOptions::default()).await.unwrap();
    let mut runner = start_runner(&backend, "some.queue").await;
    wait_for_queue(&config, "dq.v1.q.some%dqueue").await;
    let mut table = FieldTable::default();
    table.insert("shop".into(), AMQPValue::LongString("east".into()));
    let properties = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_headers(table.clone())
        .with_expiration("600000".into());
    let body = b"\xff not a job \0";
    publish(&channel, "", "dq.v1.q.some%dqueue", body, properties).await;
    // A job message's type without a version.
    let almost = BasicProperties::default().with_type("dq.carrier".into());
    publish(&channel, "", "dq.v1.q.some%dqueue", b"almost", almost).await;
    let reports_both = async || {
        let findings = backend.check().await;
        let letters = findings.iter().find(|it| it.code == "rabbitmq.dead-letters");
        letters.is_some_and(|it| it.cause.starts_with("2 messages"))
    };
    wait_until("both are reported", reports_both).await;
    let mut moved = Vec::new();
    for _ in 0..2 {
        moved.push(take_message(&channel, &["dq.v1.dead"]).await);
    }
    let found = moved.iter().find(|it| it.data == body).expect("the body is unchanged");
    assert_eq!(*found.properties.headers(), Some(table));
    assert_eq!(*found.properties.content_type(), Some("text/plain".into()));
    assert_eq!(*found.properties.expiration(), None, "it would be lost");
    assert!(moved.iter().any(|it| it.data == b"almost"));
    let new = after(1_200, job("some.queue"));
    backend.schedule(vec![new.clone()]).await.unwrap();
    runner.expect_each_once(&[new]).await;
}
