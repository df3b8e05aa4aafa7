//! Connections that are opened and closed, and requests that take too long.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Entropy, ErrorKind};
use dq_servers::shared_rabbitmq;
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{poll, wait_until};
use futures_util::FutureExt;
use lapin::BasicProperties;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use super::fixture::{assert_error, config, config_for, connect};
use crate::connect::{AmqpChannel, AmqpConnection};

/// Enough for an immediate reaction, and less than the response timeout.
const SOON: Duration = Duration::from_secs(30);

async fn open(connection: &AmqpConnection) -> (AmqpChannel, u64) {
    poll("an open channel", async || connection.open("test").await.ok()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_causes_a_timeout_and_its_socket_is_closed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config_for(format!("amqp://{}", listener.local_addr().unwrap()));
    config.response_timeout = Duration::from_millis(300);
    let connection = connect(&config);
    let (mut accepted, _) = listener.accept().await.unwrap();
    assert_error(connection.channel("test").await, ErrorKind::Unavailable, &["no reply in time"]);
    drop(connection);
    // Although the client library still waits for data.
    let mut received = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut accepted, &mut received);
    tokio::time::timeout(SOON, read).await.unwrap().ok();
    assert!(received.starts_with(b"AMQP"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_and_dropped_connections_are_closed_at_the_broker() {
    let config = config("closed");
    // A connection that ends meanwhile has no information.
    let list = "length([C || C <- rabbit_networking:connections(), [{vhost, <<\"closed\">>}] =:= \
                (catch rabbit_networking:connection_info(C, [vhost]))])";
    let is_listed = async |count: &str| {
        let listed = || shared_rabbitmq().eval(list);
        wait_until("the broker lists its connections", async || listed().trim() == count).await;
    };
    let closed = connect(&config);
    let _channel = closed.channel("test").await.unwrap();
    is_listed("1").await;
    closed.close().await;
    closed.close().await;
    assert_eq!(closed.channel("test").await.unwrap_err().kind(), ErrorKind::Closed);
    is_listed("0").await;

    let dropped = connect(&config);
    let _channel = dropped.channel("test").await.unwrap();
    is_listed("1").await;
    drop(dropped);
    is_listed("0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_nobody_waits_for_is_ended() {
    let connection = connect(&config("ghost"));
    let checking = connection.channel("test").await.unwrap();
    let declare = || {
        let options = QueueDeclareOptions::default();
        checking.inner().queue_declare("q".into(), options, FieldTable::default())
    };
    declare().await.unwrap();
    let channel = loop {
        let channel = connection.channel("test").await.unwrap();
        // The request is dropped before the reply, unless that comes meanwhile.
        let consuming = channel.consume("q".into(), FieldTable::default());
        if consuming.now_or_never().is_none() {
            break channel;
        }
    };
    wait_until("the channel is closed", async || !channel.is_open()).await;
    let is_ended = async || declare().await.unwrap().consumer_count() == 0;
    wait_until("the consumer is ended", is_ended).await;
}

/// The broker reads nothing more, as on a blocked connection.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_has_a_time_limit() {
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut config = config("limits");
    config.url = Secret::new(proxy.url(config.url.expose()));
    config.response_timeout = Duration::from_secs(1);
    let connection = connect(&config);
    // On a busy machine, a request may take longer than a second, which closes its channel.
    let [confirms, prefetch, consume, declare, publish] = poll("five open channels", async || {
        let channel = async || connection.channel("test").await.ok();
        let publish = channel().await?;
        publish.confirm_select().await.ok()?;
        let [a, b, c, d] = [channel().await?, channel().await?, channel().await?, channel().await?];
        let channels = [a, b, c, d, publish];
        channels.iter().all(AmqpChannel::is_open).then_some(channels)
    })
    .await;
    proxy.pause_requests();
    let is_late = |error: lapin::Error| match error.kind() {
        lapin::ErrorKind::IOError(error) => error.kind() == std::io::ErrorKind::TimedOut,
        _ => false,
    };
    assert!(is_late(confirms.confirm_select().await.unwrap_err()));
    assert!(is_late(prefetch.qos(1).await.unwrap_err()));
    assert!(is_late(consume.consume("q".into(), FieldTable::default()).await.unwrap_err()));
    wait_until("its channel is closed", async || !consume.is_open()).await;
    let options = QueueDeclareOptions::default();
    let declared = declare.declare_queue("q".into(), options, FieldTable::default());
    assert!(is_late(declared.received().await.unwrap_err()));
    let confirm = publish.publish("".into(), "q".into(), true, b"x", BasicProperties::default());
    assert!(is_late(confirm.await.unwrap().received().await.unwrap_err()));
    assert_error(connection.channel("test").await, ErrorKind::Unavailable, &["no reply in time"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_connections_of_a_process_go_to_another_node_when_one_is_skipped() {
    let url = shared_rabbitmq().vhost("nodes");
    let server = shared_rabbitmq().address();
    let nodes = [TcpProxy::to(server.clone()).await, TcpProxy::to(server.clone()).await];
    let both = format!("127.0.0.1:{},127.0.0.1:{}", nodes[0].port(), nodes[1].port());
    let config = config_for(url.replace(&server, &both));
    let broker = Arc::new(config.broker(Arc::new(Entropy::seeded(1))).unwrap());
    let connections =
        ["publish", "consume"].map(|it| AmqpConnection::start(Arc::clone(&broker), it));
    for (node, expected) in [(0, 2), (1, 2), (0, 4)] {
        let what = format!("node {node} has had {expected} connections");
        wait_until(&what, async || nodes[node].connections() >= expected).await;
        for connection in &connections {
            open(connection).await;
        }
        assert!(connections[0].skip_node(), "there are two");
        for connection in &connections {
            let before = connection.epoch();
            while connection.epoch() == before {
                connection.reconnect();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
