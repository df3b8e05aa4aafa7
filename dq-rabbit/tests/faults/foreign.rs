//! Foreign messages, which another program has published, in the queues of the backend.

use dq_core::{BrowseParams, DeadKind, Due, JobState, JobView, Operation};
use dq_rabbit::RabbitConfig;
use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::fixture::{
    after, amqp_client, claim, config, done_settlements, job, open, poll, publish, queue,
    queue_exists, start_runner, stats, wait_until,
};

/// Waits until a ready queue exists. It may be declared after the call that schedules the first job of
/// the queue has returned.
async fn wait_for_queue(config: &RabbitConfig, name: &str) {
    wait_until(&format!("{name} exists"), async || queue_exists(config, name).await).await;
}

/// The dead jobs of a queue.
async fn dead(backend: &dyn dq_core::Backend, name: &str) -> Vec<JobView> {
    let queue = queue(name);
    let params = BrowseParams::new(&queue, JobState::Dead).limit(10).payloads(true);
    backend.browse(params).await.unwrap().jobs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_message_becomes_a_dead_job_with_its_bytes() {
    let config = config("foreign");
    let backend = open(&config).await;
    let _runner = start_runner(&backend, "some.queue").await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    let mut table = FieldTable::default();
    table.insert("shop".into(), AMQPValue::LongString("east".into()));
    table.insert("number".into(), AMQPValue::LongLongInt(7));
    let properties =
        BasicProperties::default().with_content_type("text/plain".into()).with_headers(table);
    wait_for_queue(&config, "dq.v1.q.some%dqueue").await;
    let body = b"\xff not a job \0";
    publish(&channel, "", "dq.v1.q.some%dqueue", body, properties).await;
    // The type of a job message without a version.
    let almost = BasicProperties::default().with_type("dq.carrier".into());
    publish(&channel, "", "dq.v1.q.some%dqueue", b"almost", almost).await;
    wait_until("both are dead jobs", async || stats(&*backend, "some.queue").await.dead == 2).await;
    let views = dead(&*backend, "some.queue").await;
    let view =
        views.iter().find(|view| view.job.payload == body[..]).expect("the body is unchanged");
    let (reason, _) = view.dead.as_ref().unwrap();
    assert_eq!(reason.kind, DeadKind::Quarantined);
    assert!(reason.message.contains("not a job"), "{reason:?}");
    assert_eq!(view.job.headers.get("shop"), Some("east"));
    assert_eq!(view.job.headers.get("content-type"), Some("text/plain"));
    // Jobs still run.
    let new = after(1_200, job("q"));
    backend.schedule(vec![new.clone()]).await.unwrap();
    start_runner(&backend, "q").await.expect_each_once(&[new]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_dead_letters_can_be_inspected_and_replayed() {
    let config = config("letters");
    let backend = open(&config).await;
    // Declares the ready queue.
    backend.schedule(vec![after(2_000_000, job("mail"))]).await.unwrap();
    wait_for_queue(&config, "dq.v1.q.mail").await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    publish(&channel, "", "dq.v1.q.mail", b"rejected", BasicProperties::default()).await;
    let message = poll("a message", async || {
        let get = channel.basic_get("dq.v1.q.mail".into(), BasicGetOptions::default());
        get.await.unwrap()
    })
    .await
    .delivery;
    channel
        .basic_reject(message.delivery_tag, BasicRejectOptions { requeue: false })
        .await
        .unwrap();
    // A message published to the dead-letter exchange directly.
    publish(&channel, "dq.v1.dead", "", b"sent", BasicProperties::default()).await;
    // Who serves any queue consumes the dead letters, too; not "mail", whose message was to be
    // rejected.
    let _wakeups = backend.listen(&[queue("other")]).await.unwrap();
    wait_until("the message is a dead job", async || stats(&*backend, "mail").await.dead == 1)
        .await;
    let view = dead(&*backend, "mail").await.remove(0);
    assert_eq!(view.job.payload, &b"rejected"[..]);
    let (reason, _) = view.dead.unwrap();
    assert!(reason.message.contains("dq.v1.q.mail: rejected"), "{reason:?}");
    wait_until("the other message is a dead job", async || {
        stats(&*backend, "dead-letters").await.dead == 1
    })
    .await;

    let mut quarantined = Vec::new();
    wait_until("a claim reports both", async || {
        quarantined.extend(claim(&*backend, "mail", 1).await.unwrap().quarantined);
        quarantined.len() == 2
    })
    .await;
    let reported = |body: &[u8]| quarantined.iter().any(|(job, _)| job.payload == body);
    assert!(reported(b"rejected") && reported(b"sent"), "{quarantined:?}");

    let mail = queue("mail");
    let replay = Operation::Replay { queue: &mail, jobs: &[view.job.id], due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 1);
    let claimed = claim(&*backend, "mail", 1).await.unwrap();
    assert_eq!(claimed.jobs[0].job.payload, &b"rejected"[..]);
    backend.settle(&done_settlements(&claimed)).await.unwrap();
    assert_eq!(stats(&*backend, "mail").await.dead, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_message_a_foreign_consumer_rejects_still_runs() {
    let config = config("rejected");
    let backend = open(&config).await;
    let new = after(1_200, job("q"));
    backend.schedule(vec![new.clone()]).await.unwrap();
    wait_for_queue(&config, "dq.v1.q.q").await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    wait_until("a foreign consumer rejects the message", async || {
        let get = channel.basic_get("dq.v1.q.q".into(), BasicGetOptions::default()).await;
        let Some(message) = get.unwrap() else { return false };
        let reject = BasicRejectOptions { requeue: false };
        channel.basic_reject(message.delivery.delivery_tag, reject).await.unwrap();
        true
    })
    .await;
    start_runner(&backend, "q").await.expect_each_once(&[new]).await;
    assert_eq!(stats(&*backend, "q").await.dead, 0);
}
