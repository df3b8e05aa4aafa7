//! Processes with and without a replica, and one that takes requests and does not reply.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Backend, Error, ErrorKind, NewJob, Result, Scheduled};
use dq_rabbit::{QueueKind, RabbitBackend, RabbitConfig, ReplicaMode};
use dq_servers::shared_rabbitmq;
use dq_testkit::fixture::{TIMEOUT, poll, retry, wait_until};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

pub(crate) const REQUESTS: &str = "dq.v1.requests";

/// Settings for a separate virtual host on the shared server.
pub(crate) fn config(vhost: &str) -> RabbitConfig {
    config_for(&shared_rabbitmq().vhost(vhost))
}

pub(crate) fn config_for(url: &str) -> RabbitConfig {
    let mut config = RabbitConfig::new(url);
    config.queues = QueueKind::Classic;
    config.response_timeout = Duration::from_secs(20);
    config
}

pub(crate) async fn connect(config: &RabbitConfig) -> Result<Arc<RabbitBackend>> {
    Ok(Arc::new(RabbitBackend::connect(config, &Environment::default()).await?))
}

/// Opens a process with a replica.
pub(crate) async fn full(config: &RabbitConfig) -> Arc<RabbitBackend> {
    let mut config = config.clone();
    config.replica = ReplicaMode::Eager;
    retry(|| connect(&config)).await
}

/// Opens a light process, once somebody serves.
pub(crate) async fn light(config: &RabbitConfig) -> Arc<RabbitBackend> {
    poll("a process serves", async || {
        wait_until("the broker knows the server", async || servers(config).await > 0).await;
        let backend = retry(|| connect(config)).await;
        backend.is_light().then_some(backend)
    })
    .await
}

pub(crate) async fn amqp_channel(config: &RabbitConfig) -> (Connection, Channel) {
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(config.url.expose(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// How many processes serve.
pub(crate) async fn servers(config: &RabbitConfig) -> u32 {
    let (connection, channel) = amqp_channel(config).await;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(REQUESTS.into(), options, FieldTable::default()).await;
    let count = declared.map_or(0, |queue| queue.consumer_count());
    connection.close(200, "done".into()).await.ok();
    count
}

/// A process that holds one request at a time, and replies and acknowledges only when the test says
/// so.
pub(crate) struct SilentServer {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
}

impl SilentServer {
    pub(crate) async fn start(config: &RabbitConfig) -> Self {
        let (connection, channel) = amqp_channel(config).await;
        channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer =
            channel.basic_consume(REQUESTS.into(), "".into(), options, arguments).await.unwrap();
        Self { connection, channel, consumer }
    }

    pub(crate) async fn take(&mut self) -> Delivery {
        let request = tokio::time::timeout(TIMEOUT, self.consumer.next()).await;
        request.expect("a request arrives").unwrap().unwrap()
    }

    /// Takes a request that nobody has taken before.
    pub(crate) async fn take_new(&mut self) {
        assert!(!self.take().await.redelivered);
    }

    pub(crate) async fn reply(&self, request: &Delivery, body: &[u8]) {
        let key = request.properties.reply_to().clone().unwrap();
        let number = request.properties.correlation_id().clone().unwrap();
        let properties = BasicProperties::default().with_correlation_id(number);
        let options = BasicPublishOptions::default();
        let publishing =
            self.channel.basic_publish(REQUESTS.into(), key, options, body, properties);
        publishing.await.unwrap();
    }

    /// Acknowledges a request, so that the broker delivers the next one.
    pub(crate) async fn ack(&self, request: &Delivery) {
        self.channel.basic_ack(request.delivery_tag, BasicAckOptions::default()).await.unwrap();
    }

    pub(crate) async fn die(self) {
        self.connection.close(200, "died".into()).await.unwrap();
    }
}

/// Opens a light process that is served by a silent one only.
pub(crate) async fn with_silent_server(
    config: &RabbitConfig,
) -> (Arc<RabbitBackend>, SilentServer) {
    let first = full(config).await;
    let caller = light(config).await;
    let silent = SilentServer::start(config).await;
    first.close().await.unwrap();
    (caller, silent)
}

/// A request or a reply of this version, with its checksum.
pub(crate) fn framed(version: u8, body: &[u8]) -> Vec<u8> {
    let checksum = xxhash_rust::xxh3::xxh3_64_with_seed(body, version.into()).to_le_bytes();
    [&[version][..], &checksum, body].concat()
}

pub(crate) fn spawn_schedule(
    backend: &Arc<RabbitBackend>,
    job: &NewJob,
) -> tokio::task::JoinHandle<Result<Vec<Scheduled>>> {
    let (backend, job) = (Arc::clone(backend), job.clone());
    tokio::spawn(async move { backend.schedule(vec![job]).await })
}

pub(crate) fn assert_unknown<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.remedy_text().is_some(), "{error}");
    error
}
