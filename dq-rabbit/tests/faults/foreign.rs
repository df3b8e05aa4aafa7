//! Messages that other programs publish to the backend's queues, or take from them.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use crate::fixture::{
    after, amqp_client, config, delete_queues, finding, job, open, publish, queue_exists,
    start_runner, take_message, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_message_goes_to_the_dead_letter_queue_as_it_is() {
    let config = config("foreign");
    let backend = open(&config).await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    // The runner restores the queue.
    delete_queues(&config, &["dq.v1.dead"]).await;
    let mut runner = start_runner(&backend, "some.queue").await;
    let ready = "dq.v1.q.some%dqueue";
    wait_until("the ready queue exists", async || queue_exists(&config, ready).await).await;

    let mut table = FieldTable::default();
    table.insert("shop".into(), AMQPValue::LongString("east".into()));
    let properties = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_headers(table.clone())
        .with_expiration("600000".into());
    let body = b"\xff not a job \0";
    publish(&channel, "", ready, body, properties).await;
    // A job message's type without a version.
    let almost = BasicProperties::default().with_type("dq.carrier".into());
    publish(&channel, "", ready, b"almost", almost).await;

    wait_until("both are reported", async || {
        let letters = finding(&*backend, "rabbitmq.dead-letters").await;
        letters.is_some_and(|it| it.cause.starts_with("2 messages"))
    })
    .await;
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
