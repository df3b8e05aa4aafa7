use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use dq_core::{Dq, Verdict};
use dq_forward::{AmqpForward, AmqpSettings};
use dq_servers::{RabbitMq, shared_rabbitmq};
use lapin::types::{AMQPValue, FieldTable};

use crate::broker::{channel, declare, take_all};
use crate::common::{Running, client, schedule};

async fn forwarding(url: &str) -> Dq {
    let forward = format!("type = 'amqp'\nurl = '{url}'\nrouting_key = 'due'");
    client(&format!("[queues.Q]\nconcurrency = 8\n[queues.Q.forward]\n{forward}")).await
}

#[tokio::test]
async fn a_job_becomes_a_persistent_message_with_its_id() {
    let url = shared_rabbitmq().vhost("forward-message");
    let channel = channel(&url).await;
    declare(&channel, "due").await;
    let dq = forwarding(&url).await;
    let mut running = Running::start(dq.runner());
    let job = dq.queue("Q").unwrap().schedule(b"\x00\xff".to_vec(), "application/x-bytes");
    let scheduled = job.key("order-1").header("tenant", "seven").await.unwrap();
    let (id, due) = (scheduled.id(), scheduled.due().as_millis());
    assert_eq!(running.next().await, (id, Verdict::Done));
    running.stop().await;
    let [(properties, body)] = take_all(&channel, "due").await.try_into().unwrap();
    assert_eq!(body, b"\x00\xff");
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), id.to_string());
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/x-bytes");
    assert_eq!(*properties.delivery_mode(), Some(2));
    let headers = properties.headers().as_ref().unwrap().inner();
    for (name, value) in [("tenant", "seven"), ("x-dq-queue", "Q"), ("x-dq-key", "order-1")] {
        assert_eq!(headers[name], AMQPValue::LongString(value.into()), "{name}");
    }
    for (name, number) in [
        ("x-dq-due", due),
        ("x-dq-first-due", due),
        ("x-dq-attempt", 1),
        ("x-dq-deliveries", 1),
        ("x-dq-fencing-token", 1),
    ] {
        assert_eq!(headers[name], AMQPValue::LongLongInt(number), "{name}");
    }
}

#[tokio::test]
async fn an_unroutable_message_is_not_lost() {
    const JOBS: usize = 20;
    let url = shared_rabbitmq().vhost("forward-unroutable");
    let channel = channel(&url).await;
    let dq = forwarding(&url).await;
    let mut running = Running::start(dq.runner());
    let mut ids = BTreeMap::new();
    for job in 0..JOBS {
        ids.insert(schedule(&dq, "Q", &job.to_string()).await.to_string(), job);
    }
    for _ in 0..JOBS {
        let verdict = running.next_text().await;
        assert!(
            verdict.starts_with("retry the broker has returned the message: NO_ROUTE"),
            "{verdict}"
        );
    }
    declare(&channel, "due").await;
    let mut done = 0;
    while done < JOBS {
        done += usize::from(running.next().await.1 == Verdict::Done);
    }
    running.stop().await;
    for (properties, body) in take_all(&channel, "due").await {
        let id = properties.message_id().as_ref().unwrap().as_str();
        let job = ids.remove(id).expect("each job once: no confirmation was lost");
        assert_eq!(body, job.to_string().as_bytes());
    }
    assert!(ids.is_empty(), "lost: {ids:?}");
}

#[tokio::test]
async fn a_missing_exchange_is_retried_until_it_exists() {
    let url = shared_rabbitmq().vhost("forward-exchange");
    let channel = channel(&url).await;
    let forward = format!(
        "[queues.Q.forward]\ntype = 'amqp'\nurl = '{url}'\nexchange = 'events'\nrouting_key = 'due'"
    );
    let dq = client(&forward).await;
    let mut running = Running::start(dq.runner());
    schedule(&dq, "Q", "1").await;
    let verdict = running.next_text().await;
    assert!(verdict.contains("NOT_FOUND") && verdict.starts_with("retry"), "{verdict}");
    let fanout = lapin::ExchangeKind::Fanout;
    let options = lapin::options::ExchangeDeclareOptions::default();
    channel
        .exchange_declare("events".into(), fanout, options, FieldTable::default())
        .await
        .unwrap();
    declare(&channel, "due").await;
    let bind = lapin::options::QueueBindOptions::default();
    channel
        .queue_bind("due".into(), "events".into(), "".into(), bind, FieldTable::default())
        .await
        .unwrap();
    while running.next().await.1 != Verdict::Done {}
    running.stop().await;
    assert_eq!(take_all(&channel, "due").await.len(), 1);
}

/// The file that replaces the operating system's authorities.
const SYSTEM_CA: &str = "SSL_CERT_FILE";

#[test]
fn the_authority_in_ca_is_trusted_in_place_of_the_systems() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "amqp::process_that_trusts_authorities"]);
    let child = child.env(SYSTEM_CA, dir.path().join("system.crt")).output();
    let output = String::from_utf8(child.unwrap().stdout).unwrap();
    assert!(output.contains("1 passed"), "{output}");
}

#[tokio::test]
#[ignore = "a process that another test starts"]
async fn process_that_trusts_authorities() {
    let system = std::env::var_os(SYSTEM_CA).expect("this test is started by another test");
    let broker = tokio::task::spawn_blocking(|| RabbitMq::options().tls().start()).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    dq_servers::create_certificates(other.path());
    let (other, own) = (other.path().join("ca.crt"), broker.ca());
    let verdict = async |system_ca: &Path, ca: Option<&Path>| {
        std::fs::copy(system_ca, &system).unwrap();
        let mut settings = AmqpSettings::new(broker.url(), "due");
        settings.ca = ca.map(Path::to_owned);
        let forward = AmqpForward::new(settings).unwrap();
        let dq = client("").await;
        let mut running = Running::start(dq.runner().raw_handler("Q", forward));
        schedule(&dq, "Q", "1").await;
        let verdict = running.next_text().await;
        running.stop().await;
        verdict
    };
    // No queue takes the message.
    for (system, ca, expected) in [
        (&other, Some(&*own), "NO_ROUTE"),
        (&own, None, "NO_ROUTE"),
        (&own, Some(&*other), "invalid peer certificate"),
        (&other, None, "invalid peer certificate"),
    ] {
        let verdict = verdict(system, ca).await;
        assert!(verdict.contains(expected), "{system:?}, {ca:?}: {verdict}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_in_mid_publish_loses_nothing() {
    let broker = Arc::new(tokio::task::spawn_blocking(RabbitMq::start).await.unwrap());
    let url = broker.url();
    declare(&channel(&url).await, "due").await;
    broker.sync_declarations();
    let dq = forwarding(&url).await;
    let mut running = Running::start(dq.runner());
    let schedule_numbered = async |job: usize| schedule(&dq, "Q", &job.to_string()).await;
    let (killed, restarted) = (Arc::clone(&broker), Arc::clone(&broker));
    let mut missing = running
        .done_over_a_crash(schedule_numbered, move || killed.kill(), move || restarted.restart())
        .await;
    running.stop().await;
    for (properties, body) in take_all(&channel(&url).await, "due").await {
        // A message arrives twice if its confirmation was lost.
        let id = properties.message_id().as_ref().unwrap().as_str();
        if let Some(job) = missing.remove(id) {
            assert_eq!(body, job.to_string().as_bytes());
        }
    }
    assert!(missing.is_empty(), "lost: {missing:?}");
}
