//! What a broker refuses is told with what to do about it.

use std::time::{Duration, Instant};

use dq_core::ErrorKind;
use dq_servers::{RabbitMq, shared_rabbitmq};

use super::rig::{assert_told, config, link, of_url, queue, topology, url_of};

const COMMAND: &str = r"set_permissions -p '/' 'stranger' '^my\.shop\.v1\.'";

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_connect_is_told_at_once() {
    let server = shared_rabbitmq();
    server.ctl(&["add_user", "stranger", "secret"]);
    for (url, words) in [
        (url_of(server, "stranger", "hunter2", "%2F"), ["ACCESS_REFUSED", "user and password"]),
        (url_of(server, "nobody", "hunter2", "%2F"), ["ACCESS_REFUSED", "user and password"]),
        (url_of(server, "stranger", "secret", "%2F"), ["stranger", COMMAND]),
        (url_of(server, "stranger", "secret", "nowhere"), ["vhost", "nowhere"]),
    ] {
        let began = Instant::now();
        let mut config = of_url(url);
        config.prefix = "my.shop".to_owned();
        let error = link(&config).channel("declare").await.unwrap_err();
        assert_told(&error, ErrorKind::Config, &words);
        assert_eq!(error.failed_operation(), "connect", "{error}");
        let text = error.to_string();
        assert!(!text.contains("hunter2") && !text.contains("secret"), "{text}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_host_that_is_not_there_is_named() {
    let mut config = config("there");
    config.url = dq_core::config::Secret::new(config.url.expose().replace("there", "nowhere"));
    let error = link(&config).channel("connect").await.unwrap_err();
    assert_told(&error, ErrorKind::Config, &["nowhere", "add_vhost"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_are_told_apart() {
    let server = shared_rabbitmq();
    let vhost = "rights";
    server.vhost(vhost);
    server.ctl(&["add_user", "clerk", "secret"]);
    let mut config = of_url(url_of(server, "clerk", "secret", vhost));
    config.prefix = "my.shop".to_owned();
    let all = r"^my\.shop\.v1\.";
    for (configure, write, read, lacking) in
        [("", all, all, "configure"), (all, "", all, "write"), (all, all, "", "read")]
    {
        server.ctl(&["set_permissions", "-p", vhost, "clerk", configure, write, read]);
        let (_link, topology) = topology(&config);
        let error = topology.prepare().await.unwrap_err();
        let command = format!("set_permissions -p 'rights' 'clerk' '{all}' '{all}' '{all}'");
        let lacking = format!("the right to {lacking} is lacking");
        assert_told(&error, ErrorKind::Config, &["my.shop.v1.", &lacking, &command]);
    }
    server.ctl(&["set_permissions", "-p", vhost, "clerk", all, all, all]);
    let (_link, topology) = topology(&config);
    topology.prepare().await.unwrap();
    topology.ready(&queue("orders")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_at_the_address_is_told_when_patience_ends() {
    let mut config = of_url("amqp://127.0.0.1:1".to_owned());
    config.response_timeout = Duration::from_secs(5);
    let error = link(&config).channel("declare").await.unwrap_err();
    assert_told(&error, ErrorKind::Unavailable, &["127.0.0.1:1", "refused", "runs"]);
    assert_eq!(error.failed_operation(), "connect", "{error}");
    config = of_url("amqp://no.such.host.invalid:1".to_owned());
    config.response_timeout = Duration::from_millis(500);
    let error = link(&config).channel("connect").await.unwrap_err();
    assert_told(&error, ErrorKind::Unavailable, &["no.such.host.invalid:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_wants_the_right_authority_and_the_right_port() {
    let server = RabbitMq::options().tls().start();
    let mut config = of_url(server.url());
    config.response_timeout = Duration::from_secs(20);
    let error = link(&config).channel("connect").await.unwrap_err();
    assert_told(&error, ErrorKind::Config, &["certificate", "`ca`"]);

    config.ca = Some(server.ca());
    link(&config).channel("connect").await.unwrap();

    let plain = shared_rabbitmq().url().replace("amqp://", "amqps://");
    let mut config = of_url(plain);
    config.response_timeout = Duration::from_secs(3);
    config.ca = Some(server.ca());
    let error = link(&config).channel("connect").await.unwrap_err();
    assert_told(&error, ErrorKind::Unavailable, &["amqp://"]);

    let mut config = of_url(server.url().replace("amqps://", "amqp://"));
    config.response_timeout = Duration::from_secs(20);
    let error = link(&config).channel("connect").await.unwrap_err();
    assert_told(&error, ErrorKind::Config, &["amqps://"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_streams_is_told_the_flag() {
    let server = RabbitMq::options().without_feature_flag("stream_queue").start();
    let (_link, topology) = topology(&of_url(server.url()));
    let prepared = topology.prepare().await;
    if server.eval("rabbit_feature_flags:get_stability(stream_queue)") == "required" {
        // A broker of this version is never without.
        return prepared.unwrap();
    }
    let error = prepared.unwrap_err();
    assert_told(&error, ErrorKind::Incompatible, &["stream_queue", "enable_feature_flag"]);
}
