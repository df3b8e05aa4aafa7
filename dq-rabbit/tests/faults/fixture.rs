//! Fixtures: backends, jobs, a runner, and assertions on errors.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, QueueSettings};
use dq_core::{Backend, Claimed, Clock, Entropy, Result, SystemClock};
use dq_rabbit::{QueueKind, RabbitBackend, RabbitConfig};
use dq_servers::{RabbitMq, shared_rabbitmq};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

pub(crate) use dq_testkit::fixture::{
    TIMEOUT, TestRunner, after, assert_error, assert_helpful, blocking, by_id, done_settlements,
    in_an_hour, job, keyed, poll, queue, retry, stats, wait_until,
};

/// Settings for a separate virtual host on the shared server. Its queues are classic, which costs
/// least; quorum queues are tested on separate servers.
pub(crate) fn config(vhost: &str) -> RabbitConfig {
    // Each test declares about 300 queues, which need more memory than the default limit.
    shared_rabbitmq().eval("vm_memory_monitor:set_vm_memory_high_watermark({absolute, \"2GB\"})");
    let mut config = RabbitConfig::new(shared_rabbitmq().vhost(vhost));
    config.queues = QueueKind::Classic;
    config.response_timeout = Duration::from_secs(10);
    config
}

/// Settings for this server.
pub(crate) fn config_for(server: &RabbitMq) -> RabbitConfig {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(10);
    config
}

pub(crate) async fn connect(config: &RabbitConfig) -> Result<Arc<dyn Backend>> {
    connect_with_clock(config, Arc::new(SystemClock)).await
}

/// Connects a backend with this clock.
pub(crate) async fn connect_with_clock(
    config: &RabbitConfig,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>> {
    let environment = Environment::new(clock, Arc::new(Entropy::from_os()));
    Ok(Arc::new(RabbitBackend::connect(config, &environment).await?))
}

/// Connects to a server that works.
pub(crate) async fn open(config: &RabbitConfig) -> Arc<dyn Backend> {
    connect(config).await.expect("the server works")
}

/// Claims with a lease of 30 seconds.
pub(crate) async fn claim(backend: &dyn Backend, name: &str, limit: usize) -> Result<Claimed> {
    claim_for(backend, name, limit, Duration::from_secs(30)).await
}

pub(crate) async fn claim_for(
    backend: &dyn Backend,
    name: &str,
    limit: usize,
    lease_for: Duration,
) -> Result<Claimed> {
    dq_testkit::fixture::claim_for(backend, &[name], limit, lease_for).await
}

/// Claims until there is a job.
pub(crate) async fn claim_until_some(backend: &dyn Backend, name: &str) -> Claimed {
    poll(name, async || {
        let claimed = retry(|| claim(backend, name, 1)).await;
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await
}

/// A plain AMQP client, with confirms.
pub(crate) async fn amqp_client(url: &str) -> (Connection, Channel) {
    let connection =
        Connection::connect(url, ConnectionProperties::default()).await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    (connection, channel)
}

/// Publishes a message that the broker must confirm.
pub(crate) async fn publish(
    channel: &Channel,
    exchange: &str,
    key: &str,
    body: &[u8],
    properties: BasicProperties,
) {
    let options = BasicPublishOptions::default();
    let confirm =
        channel.basic_publish(exchange.into(), key.into(), options, body, properties).await;
    assert_eq!(confirm.unwrap().await.unwrap(), Confirmation::Ack(None));
}

/// Starts a runner of this queue.
pub(crate) async fn start_runner(backend: &Arc<dyn Backend>, name: &str) -> TestRunner {
    TestRunner::start(backend, &[name]).await
}

/// Starts a runner whose handler takes `duration`.
pub(crate) async fn start_runner_with(
    backend: &Arc<dyn Backend>,
    name: &str,
    duration: Duration,
    settings: QueueSettings,
) -> TestRunner {
    TestRunner::start_with(backend, &[name], duration, settings).await
}
