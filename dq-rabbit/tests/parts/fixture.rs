//! A broker, and links to it.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Entropy, Error, QueueName};
use dq_servers::{RabbitMq, shared_rabbitmq};

use crate::config::RabbitConfig;
use crate::connect::{Link, Server};
use crate::topology::Topology;

/// Settings for a virtual host of its own on the server that all tests share.
pub(super) fn config(vhost: &str) -> RabbitConfig {
    of_url(shared_rabbitmq().vhost(vhost))
}

pub(super) fn of_url(url: String) -> RabbitConfig {
    let mut config = RabbitConfig::new(url);
    // Declaring takes the broker long on a busy machine.
    config.response_timeout = Duration::from_secs(60);
    config
}

pub(super) fn link(config: &RabbitConfig) -> Arc<Link> {
    config.validate().unwrap();
    let server = Server::new(&config.server(), Arc::new(Entropy::seeded(1))).unwrap();
    Arc::new(Link::start(Arc::new(server), "test"))
}

pub(super) fn topology(config: &RabbitConfig) -> (Arc<Link>, Topology) {
    let link = link(config);
    (Arc::clone(&link), Topology::new(link, config))
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// The same address as another user, with another virtual host.
pub(super) fn url_of(server: &RabbitMq, user: &str, password: &str, vhost: &str) -> String {
    format!("amqp://{user}:{password}@{}/{vhost}", server.address())
}

/// What a user reads of an error, which names all of these.
pub(super) fn assert_told(error: &Error, kind: dq_core::ErrorKind, words: &[&str]) {
    let text = error.to_string();
    println!("{text}");
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert!(error.remedy_text().is_some(), "{text}");
}
