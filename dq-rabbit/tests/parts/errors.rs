//! Errors of a real broker, with their remedies.

use std::time::{Duration, Instant};

use dq_core::ErrorKind;
use dq_servers::{RabbitMq, shared_rabbitmq};

use super::fixture::{assert_error, config_for, connect, declare_all, topology, url_for};

const COMMAND: &str = r"set_permissions -p '/' 'visitor' '^my\.shop\.v1\.'";

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_fail_at_once() {
    let server = shared_rabbitmq();
    server.ctl(&["add_user", "visitor", "secret"]);
    for (url, words) in [
        (url_for(server, "visitor", "hunter2", "%2F"), ["ACCESS_REFUSED", "user and password"]),
        (url_for(server, "nobody", "hunter2", "%2F"), ["ACCESS_REFUSED", "user and password"]),
        (url_for(server, "visitor", "secret", "%2F"), ["visitor", COMMAND]),
        (url_for(server, "visitor", "secret", "nowhere"), ["nowhere", "add_vhost"]),
    ] {
        let began = Instant::now();
        let mut config = config_for(url);
        config.prefix = "my.shop".to_owned();
        let error = connect(&config).channel("declare").await.unwrap_err();
        assert_error(&error, ErrorKind::Config, &words);
        assert_eq!(error.failed_operation(), "connect", "{error}");
        let text = error.to_string();
        assert!(!text.contains("hunter2") && !text.contains("secret"), "{text}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_needs_a_trusted_certificate_and_the_tls_port() {
    let server = RabbitMq::options().tls().start();
    let mut config = config_for(server.url());
    config.response_timeout = Duration::from_secs(20);
    let error = connect(&config).channel("connect").await.unwrap_err();
    assert_error(&error, ErrorKind::Config, &["certificate", "`ca`"]);

    config.ca = Some(server.ca());
    connect(&config).channel("connect").await.unwrap();

    let plain = shared_rabbitmq().url().replace("amqp://", "amqps://");
    let mut config = config_for(plain);
    config.response_timeout = Duration::from_secs(20);
    config.ca = Some(server.ca());
    let error = connect(&config).channel("connect").await.unwrap_err();
    assert_error(&error, ErrorKind::Unavailable, &["amqp://"]);

    let mut config = config_for(server.url().replace("amqps://", "amqp://"));
    config.response_timeout = Duration::from_secs(20);
    let error = connect(&config).channel("connect").await.unwrap_err();
    assert_error(&error, ErrorKind::Config, &["amqps://"]);
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
    let error = prepared.unwrap_err();
    assert_error(&error, ErrorKind::Incompatible, &["stream_queue", "enable_feature_flag"]);
}
