//! Errors of a real broker, with their remedies.

use std::time::{Duration, Instant};

use dq_core::ErrorKind;
use dq_servers::{RabbitMq, shared_rabbitmq};

use super::fixture::{assert_error, config_for, connect, declare_all, topology};

const COMMAND: &str = r"set_permissions -p '/' 'visitor' '^my\.shop\.v1\.'";

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_fail_at_once() {
    let server = shared_rabbitmq();
    server.ctl(&["add_user", "visitor", "secret"]);
    for (login, vhost, words) in [
        ("visitor:hunter2", "%2F", ["ACCESS_REFUSED", "user and password"]),
        ("nobody:hunter2", "%2F", ["ACCESS_REFUSED", "user and password"]),
        ("visitor:secret", "%2F", ["visitor", COMMAND]),
        ("visitor:secret", "nowhere", ["nowhere", "add_vhost"]),
    ] {
        let began = Instant::now();
        let mut config = config_for(format!("amqp://{login}@{}/{vhost}", server.address()));
        config.prefix = "my.shop".to_owned();
        let error =
            assert_error(connect(&config).channel("declare").await, ErrorKind::Config, &words);
        assert_eq!(error.failed_operation(), "connect", "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_needs_a_trusted_certificate_and_the_tls_port() {
    let server = RabbitMq::options().tls().start();
    let connected = async |url: String, ca| {
        let mut config = config_for(url);
        config.response_timeout = Duration::from_secs(20);
        config.ca = ca;
        connect(&config).channel("connect").await.map(drop)
    };
    let (tls, ca) = (server.url(), Some(server.ca()));
    assert_error(connected(tls.clone(), None).await, ErrorKind::Config, &["certificate", "`ca`"]);
    connected(tls.clone(), ca.clone()).await.unwrap();

    let without_tls = shared_rabbitmq().url().replace("amqp://", "amqps://");
    assert_error(connected(without_tls, ca).await, ErrorKind::Unavailable, &["amqp://"]);

    assert_error(
        connected(tls.replace("amqps://", "amqp://"), None).await,
        ErrorKind::Config,
        &["amqps://"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_streams_is_rejected_with_the_feature_flag() {
    let server = RabbitMq::options().without_feature_flag("stream_queue").start();
    let (_connection, topology) = topology(&config_for(server.url()));
    let prepared = declare_all(&topology).await;
    if server.eval("rabbit_feature_flags:get_stability(stream_queue)") == "required" {
        // This version always supports streams.
        return prepared.unwrap();
    }
    assert_error(prepared, ErrorKind::Incompatible, &["stream_queue", "enable_feature_flag"]);
}
