//! Forwards to an exchange of an AMQP 0-9-1 broker.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::Secret;
use dq_core::sync::lock;
use dq_core::{BoxError, HandlerResult, JobContext, Outcome, RawHandler, Result};
use lapin::options::ConfirmSelectOptions;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::broker::{Broker, Link, PERSISTENT, TIMEOUT, publish, short_setting};
use crate::job::{content_type, other_headers};

/// AMQP forward settings (`type = "amqp"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AmqpSettings {
    /// The broker: `amqp://user:password@host[:port][/vhost]`, or `amqps://…` with TLS.
    pub url: Secret,
    /// The exchange, which must exist. By default the default exchange, whose routing keys are
    /// queue names.
    #[serde(default)]
    pub exchange: String,
    /// The routing key for every message.
    pub routing_key: String,
    /// A PEM file with the certificate authorities to trust; the operating system's by default.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

impl AmqpSettings {
    /// Returns the settings for a broker's default exchange, with a queue name as routing key.
    #[must_use]
    pub fn new(url: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            exchange: String::new(),
            routing_key: routing_key.into(),
            ca: None,
        }
    }
}

/// A handler that publishes each job to an exchange.
///
/// The job is done when the broker has confirmed the message and not returned it. An unroutable
/// message, a refusal and a lost connection are failures, which are retried.
///
/// Messages are persistent. `message_id` is the job id; `content_type` and headers are copied from
/// the job. Further headers are `x-dq-queue`, `x-dq-key` if the job has one, and as numbers
/// `x-dq-due` in milliseconds, `x-dq-first-due`, `x-dq-attempt`, `x-dq-deliveries` and
/// `x-dq-fencing-token`.
pub struct AmqpForward {
    broker: Broker,
    exchange: ShortString,
    routing_key: ShortString,
    pool: Mutex<Option<Arc<Pool>>>,
}

/// A connection with the channels that jobs publish on, one message at a time.
struct Pool {
    link: Link,
    /// Channels without a message in flight.
    idle: std::sync::Mutex<Vec<Channel>>,
}

impl AmqpForward {
    /// Checks the settings without connecting.
    ///
    /// # Errors
    /// `Config` naming the unusable setting.
    pub fn new(settings: AmqpSettings) -> Result<Self> {
        Ok(Self {
            broker: Broker::new(&settings.url, settings.ca.as_deref())?,
            exchange: short_setting("exchange", settings.exchange)?,
            routing_key: short_setting("routing_key", settings.routing_key)?,
            pool: Mutex::default(),
        })
    }

    async fn pool(&self) -> Result<Arc<Pool>, BoxError> {
        // The lock is held while connecting, so that concurrent jobs share the connection.
        let mut pool = self.pool.lock().await;
        if let Some(pool) = pool.as_ref().filter(|pool| pool.link.is_open()) {
            return Ok(Arc::clone(pool));
        }
        let link = self.broker.connect("forward").await?;
        let new = Arc::new(Pool { link, idle: std::sync::Mutex::default() });
        *pool = Some(Arc::clone(&new));
        Ok(new)
    }

    async fn publish(&self, job: &JobContext, properties: BasicProperties) -> Result<(), BoxError> {
        let deadline = Instant::now() + TIMEOUT;
        // The deadline covers the wait, too: each waiting job connects in turn.
        let pool = tokio::time::timeout_at(deadline, self.pool()).await;
        let pool =
            pool.map_err(|_| format!("no connection to the broker within {TIMEOUT:?}"))??;
        let limit = deadline.saturating_duration_since(Instant::now());
        pool.link.answer(limit, self.publish_on(&pool, job, properties)).await
    }

    async fn publish_on(
        &self,
        pool: &Pool,
        job: &JobContext,
        properties: BasicProperties,
    ) -> Result<(), BoxError> {
        let channel = pool.channel().await?;
        let (exchange, routing_key) = (&self.exchange, &self.routing_key);
        let published =
            publish(&channel, exchange, routing_key, job.raw_payload(), properties).await?;
        // The channel is reused only after an answer. It closes if publishing failed or this future
        // was dropped.
        pool.idle().push(channel);
        published
    }
}

impl Pool {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        lock(&self.idle)
    }

    async fn channel(&self) -> Result<Channel, BoxError> {
        while let Some(channel) = { self.idle().pop() } {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.link.channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }
}

impl fmt::Debug for AmqpForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpForward")
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl RawHandler for AmqpForward {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let properties = match properties(&job) {
            Ok(properties) => properties,
            // A retry would fail the same way.
            Err(what) => return Ok(Outcome::dead(what)),
        };
        self.publish(&job, properties).await?;
        Ok(Outcome::Done)
    }
}

/// Returns the message properties, or the reason if a job header is too long for AMQP.
fn properties(job: &JobContext) -> Result<BasicProperties, String> {
    let short = |what: &str, value: &str| {
        ShortString::try_new(value)
            .map_err(|_| format!("{what} is longer than the 255 bytes that AMQP allows"))
    };
    let text = |value: &str| AMQPValue::LongString(LongString::from(value.as_bytes()));
    let mut headers = FieldTable::default();
    for (name, value) in other_headers(job) {
        headers.insert(short(&format!("the name of header {name:?}"), name)?, text(value));
    }
    headers.insert("x-dq-queue".into(), text(job.queue().as_str()));
    if let Some(key) = job.key() {
        headers.insert("x-dq-key".into(), text(key.as_str()));
    }
    let token = i64::try_from(job.fencing_token().0).unwrap_or(i64::MAX);
    for (name, number) in [
        ("x-dq-due", job.due().as_millis()),
        ("x-dq-first-due", job.first_due().as_millis()),
        ("x-dq-attempt", job.attempt().into()),
        ("x-dq-deliveries", job.deliveries().into()),
        ("x-dq-fencing-token", token),
    ] {
        headers.insert(name.into(), AMQPValue::LongLongInt(number));
    }
    Ok(BasicProperties::default()
        .with_message_id(short("the id", &job.id().to_string())?)
        .with_content_type(short("the content type", content_type(job))?)
        .with_delivery_mode(PERSISTENT)
        .with_timestamp(u64::try_from(job.now().as_millis() / 1_000).unwrap_or(0))
        .with_headers(headers))
}

dq_core::register_forward! {
    name: "amqp",
    open: |settings| Ok(Arc::new(AmqpForward::new(settings.deserialize()?)?)),
}
