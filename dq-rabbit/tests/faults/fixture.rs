//! Backends, brokers and AMQP clients for these tests.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, Secret};
use dq_core::{
    Backend, Claimed, Clock, Entropy, Finding, HistoryLimit, HistoryLimits, Result, SystemClock,
    Timestamp, async_trait,
};
use dq_rabbit::{QueueKind, RabbitBackend, RabbitConfig};
use dq_servers::{RabbitMq, shared_rabbitmq};
use dq_testkit::faults::TcpProxy;
use futures_util::future::BoxFuture;
use lapin::message::Delivery;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

pub(crate) use dq_testkit::fixture::{
    TIMEOUT, TestRunner, after, assert_error, assert_helpful, blocking, by_id, done_settlements,
    in_an_hour, job, poll, queue, retry, stats, wait_until,
};

pub(crate) const LONG_LEASE: Duration = Duration::from_secs(3_600);

/// A virtual host of the shared server. Classic queues cost least; other tests have quorum queues.
pub(crate) fn config(vhost: &str) -> RabbitConfig {
    let mut config = RabbitConfig::new(shared_rabbitmq().vhost(vhost));
    config.queues = QueueKind::Classic;
    config.response_timeout = Duration::from_secs(30);
    config
}

pub(crate) fn config_for(server: &RabbitMq) -> RabbitConfig {
    let mut config = RabbitConfig::new(server.url());
    config.response_timeout = Duration::from_secs(10);
    config
}

pub(crate) async fn connect(config: &RabbitConfig) -> Result<Arc<dyn Backend>> {
    connect_with_clock(config, Arc::new(SystemClock)).await
}

pub(crate) async fn connect_with_clock(
    config: &RabbitConfig,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>> {
    let environment = Environment::new(clock, Arc::new(Entropy::from_os()));
    Ok(Arc::new(RabbitBackend::connect(config, &environment).await?))
}

pub(crate) async fn open_with_history(config: &RabbitConfig, max: u32) -> Arc<dyn Backend> {
    let limit = HistoryLimit::new(max, Duration::from_secs(3_600));
    let environment = Environment::default().history(HistoryLimits::all(limit));
    Arc::new(RabbitBackend::connect(config, &environment).await.expect("the server works"))
}

pub(crate) async fn open(config: &RabbitConfig) -> Arc<dyn Backend> {
    retry(|| connect(config)).await
}

pub(crate) async fn by_proxy(config: &RabbitConfig) -> (TcpProxy, RabbitConfig) {
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut config = config.clone();
    config.url = Secret::new(proxy.url(config.url.expose()));
    (proxy, config)
}

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

pub(crate) async fn claim_until_some(
    backend: &dyn Backend,
    name: &str,
    lease_for: Duration,
) -> Claimed {
    poll(name, async || {
        let claimed = retry(|| claim_for(backend, name, 1, lease_for)).await;
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await
}

pub(crate) async fn wait_until_done(backend: &dyn Backend, name: &str, jobs: u64) {
    let what = format!("{jobs} jobs of {name} are done");
    wait_until(&what, async || stats(backend, name).await.totals.unwrap().done == jobs).await;
}

pub(crate) async fn finding(backend: &dyn Backend, code: &str) -> Option<Finding> {
    backend.check().await.into_iter().find(|finding| finding.code == code)
}

#[derive(Debug)]
pub(crate) struct SkewedClock(pub(crate) i64);

impl SkewedClock {
    fn shift(time: Timestamp, by: i64) -> Timestamp {
        Timestamp::from_millis(time.as_millis() + by)
    }
}

#[async_trait]
impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Self::shift(SystemClock.now(), self.0)
    }

    fn elapsed(&self) -> Duration {
        SystemClock.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(Self::shift(until, -self.0))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        SystemClock.sleep(delay)
    }
}

pub(crate) fn close_connections(vhost: &str) -> usize {
    // A connection may end meanwhile; `catch` then gives neither a list nor a closed connection.
    let closed = shared_rabbitmq().eval(&format!(
        "length([C || C <- rabbit_networking:connections(), [<<\"{vhost}\">>] =:= \
         [V || {{vhost, V}} <- case catch rabbit_networking:connection_info(C, [vhost]) of \
         Info when is_list(Info) -> Info; _ -> [] end], \
         case catch rabbit_networking:close_connection(C, \"for the test\") of \
         {{'EXIT', _}} -> false; _ -> true end])"
    ));
    closed.trim().parse().expect("a number of connections")
}

pub(crate) async fn delete_queues(config: &RabbitConfig, names: &[&str]) {
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    for name in names {
        channel.queue_delete((*name).into(), QueueDeleteOptions::default()).await.unwrap();
    }
}

pub(crate) async fn queue_exists(config: &RabbitConfig, name: &str) -> bool {
    // If there is none, the broker closes the channel.
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    let options = QueueDeclareOptions::durable().passive();
    channel.queue_declare(name.into(), options, FieldTable::default()).await.is_ok()
}

/// Takes a message from the first queue that has one. It may come after the call that scheduled its
/// job.
pub(crate) async fn take_message(channel: &Channel, queues: &[&str]) -> Delivery {
    poll(&format!("a message in {queues:?}"), async || {
        for name in queues {
            let options = BasicGetOptions { no_ack: true };
            if let Some(message) = channel.basic_get((*name).into(), options).await.unwrap() {
                return Some(message.delivery);
            }
        }
        None
    })
    .await
}

/// Waits until a runner has handled all messages in this topic's ready queue, by a foreign message
/// behind them.
pub(crate) async fn pass_marker(channel: &Channel, topic: &str) {
    publish(channel, "dq.v1.due", topic, b"mark", BasicProperties::default()).await;
    assert_eq!(take_message(channel, &["dq.v1.dead"]).await.data, b"mark");
}

pub(crate) async fn amqp_client(url: &str) -> (Connection, Channel) {
    let connection =
        Connection::connect(url, ConnectionProperties::default()).await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    (connection, channel)
}

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

pub(crate) async fn start_runner(backend: &Arc<dyn Backend>, name: &str) -> TestRunner {
    TestRunner::start(backend, &[name]).await
}
