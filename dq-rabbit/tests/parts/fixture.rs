//! Connections and topologies for these tests.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Backend, Entropy, Finding};
use dq_servers::shared_rabbitmq;

use crate::RabbitBackend;
use crate::config::RabbitConfig;
use crate::connect::AmqpConnection;
use crate::topology::Topology;

pub(super) use dq_testkit::fixture::{assert_error, queue};

pub(super) fn config(vhost: &str) -> RabbitConfig {
    config_for(shared_rabbitmq().vhost(vhost))
}

pub(super) fn config_for(url: String) -> RabbitConfig {
    let mut config = RabbitConfig::new(url);
    config.response_timeout = Duration::from_secs(60);
    config
}

pub(super) fn connect(config: &RabbitConfig) -> Arc<AmqpConnection> {
    config.validate().unwrap();
    let broker = config.broker(Arc::new(Entropy::seeded(1))).unwrap();
    Arc::new(AmqpConnection::start(Arc::new(broker), "test"))
}

pub(super) fn topology(config: &RabbitConfig) -> (Arc<AmqpConnection>, Topology) {
    let connection = connect(config);
    (Arc::clone(&connection), Topology::new(connection, config))
}

pub(super) async fn declare_all(topology: &Topology) -> dq_core::Result<()> {
    topology.prepare().await?;
    topology.declare_messages().await
}

pub(super) async fn finding(backend: &RabbitBackend, code: &str) -> Option<Finding> {
    backend.check().await.into_iter().find(|finding| finding.code == code)
}
