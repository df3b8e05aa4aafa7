//! A link stays up, comes back, and goes away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::ErrorKind;
use dq_servers::{RabbitCluster, RabbitMq, shared_rabbitmq};
use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};

use super::rig::{assert_told, link, of_url};
use crate::connect::Link;
use crate::error::{self, Effect};

/// Longer than what happens at once takes on a busy machine, and not as long as the link's patience.
const SOON: Duration = Duration::from_secs(30);

/// Waits for what is bound to come.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A channel of a link that has little patience.
async fn open(link: &Link) -> (Channel, u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match link.open("test").await {
            Ok(opened) => return opened,
            Err(error) => assert!(Instant::now() < deadline, "never: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_comes_back_after_a_crash_and_after_a_stop() {
    let server = RabbitMq::start();
    let link = link(&of_url(server.url()));
    for crash in [true, false] {
        let (channel, generation) = link.open("test").await.unwrap();
        assert_eq!(generation, link.generation());
        if crash {
            server.kill();
        } else {
            server.stop();
        }
        tokio::time::timeout(SOON, link.lost(generation)).await.unwrap();
        until("the channel is dead", || !channel.status().connected()).await;
        server.restart();
        let restarted = Instant::now();
        let (_channel, later) = link.open("test").await.unwrap();
        println!("back after {:?}", restarted.elapsed());
        assert!(restarted.elapsed() < SOON);
        assert_eq!(later, generation + 1);
        link.lost(generation).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_when_the_broker_dies_is_told() {
    let server = RabbitMq::start();
    let link = link(&of_url(server.url()));
    let channel = link.channel("test").await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let options = QueueDeclareOptions::durable();
    channel.queue_declare("q".into(), options, FieldTable::default()).await.unwrap();
    let inbox = link.channel("test").await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut consumer =
        inbox.basic_consume("q".into(), "".into(), options, FieldTable::default()).await.unwrap();

    server.freeze();
    // A server that is told to stop may still answer a moment.
    let published = loop {
        let options = BasicPublishOptions::default();
        let mut published = channel
            .basic_publish("".into(), "q".into(), options, b"x", BasicProperties::default())
            .await
            .unwrap();
        if tokio::time::timeout(Duration::from_millis(500), &mut published).await.is_err() {
            break published;
        }
    };
    server.kill();
    let error = tokio::time::timeout(SOON, published).await.unwrap().unwrap_err();
    let error = error::of_call("schedule", Effect::Lasting, link.server(), &error);
    assert_told(&error, ErrorKind::OutcomeUnknown, &["schedule", "same job ids"]);
    // After what had arrived before.
    let next = async { while let Some(Ok(_)) = consumer.next().await {} };
    tokio::time::timeout(SOON, next).await.unwrap();
    // Nothing is sent by what is left of it, and nothing hangs.
    let options = BasicPublishOptions::default();
    let again =
        channel.basic_publish("".into(), "q".into(), options, b"x", BasicProperties::default());
    assert!(tokio::time::timeout(SOON, again).await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_node_of_a_cluster_dies_the_link_goes_to_another() {
    let cluster = RabbitCluster::start(2);
    let nodes = cluster.nodes();
    let hosts: Vec<String> = nodes.iter().map(RabbitMq::address).collect();
    let link = link(&of_url(nodes[0].url().replace(&hosts[0], &hosts.join(","))));
    for node in nodes {
        // They are tried in this order.
        let (_channel, generation) = link.open("test").await.unwrap();
        node.kill();
        tokio::time::timeout(SOON, link.lost(generation)).await.unwrap();
        if node.port() == nodes[0].port() {
            let began = Instant::now();
            link.channel("test").await.unwrap();
            assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_ends_with_the_reason_while_nobody_is_there() {
    let server = RabbitMq::start();
    let mut config = of_url(server.url());
    config.response_timeout = Duration::from_millis(500);
    let link = link(&config);
    let (_channel, generation) = open(&link).await;
    server.kill();
    link.lost(generation).await;
    let began = Instant::now();
    let error = link.channel("claim").await.unwrap_err();
    assert_told(&error, ErrorKind::Unavailable, &["claim", &server.address()]);
    let patience = Duration::from_millis(400)..SOON;
    assert!(patience.contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_not_waited_for_and_leaves_nothing() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = of_url(format!("amqp://{}", listener.local_addr().unwrap()));
    config.response_timeout = Duration::from_millis(300);
    let link = link(&config);
    let (mut taken, _) = listener.accept().await.unwrap();
    let error = link.channel("test").await.unwrap_err();
    assert_told(&error, ErrorKind::Unavailable, &["no answer in time"]);
    drop(link);
    // The socket ends although the client still waits for a word.
    let mut said = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut taken, &mut said);
    tokio::time::timeout(SOON, read).await.unwrap().ok();
    assert!(said.starts_with(b"AMQP"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_node_is_tried() {
    let server = shared_rabbitmq();
    let url = server.url().replace(&server.address(), &format!("127.0.0.1:1,{}", server.address()));
    let link = link(&of_url(url));
    let began = Instant::now();
    link.channel("test").await.unwrap();
    assert!(began.elapsed() < SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_link_says_so_and_the_broker_forgets_it() {
    let server = RabbitMq::start();
    let count = || server.eval("length(rabbit_networking:connections()).");
    let closed = link(&of_url(server.url()));
    let channel = closed.channel("test").await.unwrap();
    // Newer brokers count a moment later.
    until("the broker knows it", || count().trim() == "1").await;
    closed.close().await;
    closed.close().await;
    let error = closed.channel("schedule").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(closed.channel("test").await.unwrap_err().kind(), ErrorKind::Closed);
    until("the broker forgets", || count().trim() == "0").await;
    drop(channel);

    let dropped = link(&of_url(server.url()));
    let _channel = dropped.channel("test").await.unwrap();
    assert_eq!(count().trim(), "1");
    drop(dropped);
    until("the broker forgets", || count().trim() == "0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_told_and_does_not_hold_up_closing() {
    let server = RabbitMq::start();
    let link = link(&of_url(server.url()));
    let channel = link.channel("test").await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let options = QueueDeclareOptions::durable();
    channel.queue_declare("q".into(), options, FieldTable::default()).await.unwrap();
    let publish = || {
        let options = BasicPublishOptions::default();
        channel.basic_publish("".into(), "q".into(), options, b"x", BasicProperties::default())
    };
    publish().await.unwrap().await.unwrap();
    assert_eq!(link.blocked(), None);

    server.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
    let confirm = publish().await.unwrap();
    until("the link is blocked", || link.blocked().is_some()).await;
    println!("{:?}", link.blocked());
    assert!(link.failure().is_none());

    server.ctl(&["set_vm_memory_high_watermark", "0.9"]);
    until("the link is free", || link.blocked().is_none()).await;
    tokio::time::timeout(SOON, confirm).await.unwrap().unwrap();

    server.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
    drop(publish().await);
    until("the link is blocked again", || link.blocked().is_some()).await;
    let began = Instant::now();
    link.close().await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let count = || server.eval("length(rabbit_networking:connections()).");
    until("the broker forgets", || count().trim() == "0").await;
    drop(Arc::clone(&link));
}
