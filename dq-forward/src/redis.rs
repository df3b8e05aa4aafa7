//! Forwards to Redis: each job is appended to a stream or a list.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dq_core::config::{Secret, authority};
use dq_core::{BoxError, HandlerResult, Headers, JobContext, Outcome, RawHandler, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, cmd};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Mutex;

use crate::error::invalid_setting;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit per job, including the wait for another job's connection attempt.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Stream settings (`type = "redis-stream"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisStreamSettings {
    /// The server: `redis://[user:password@]host[:port][/db]`, `rediss://…` with TLS, or
    /// `unix:///path`. Cluster and Sentinel are not supported.
    pub url: Secret,
    /// The stream's key.
    pub stream: String,
    /// Trims the stream to about this many entries. Entries trimmed before anyone reads them are
    /// lost.
    #[serde(default)]
    pub max_len: Option<u64>,
}

impl RedisStreamSettings {
    /// Returns the settings for a server and an untrimmed stream.
    #[must_use]
    pub fn new(url: impl Into<String>, stream: impl Into<String>) -> Self {
        Self { url: Secret::new(url), stream: stream.into(), max_len: None }
    }
}

/// List settings (`type = "redis-list"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisListSettings {
    /// The server, as in [`RedisStreamSettings::url`].
    pub url: Secret,
    /// The list's key.
    pub list: String,
}

impl RedisListSettings {
    /// Returns the settings for a server and a list.
    #[must_use]
    pub fn new(url: impl Into<String>, list: impl Into<String>) -> Self {
        Self { url: Secret::new(url), list: list.into() }
    }
}

/// A handler that adds each job to a stream with `XADD`.
///
/// An entry has the fields `id` (the job id), `queue`, `key` if the job has one, `due` in
/// milliseconds, `first-due`, `attempt`, `deliveries`, `fencing-token`, `content-type`, `payload`,
/// and each job header as `header:NAME`.
#[derive(Debug)]
pub struct RedisStreamForward {
    server: Server,
    stream: String,
    max_len: Option<u64>,
}

/// A handler that adds each job to the head of a list with `LPUSH`.
///
/// An element is a JSON object with `id` (the job id), `queue`, `key` or null, `due` in
/// milliseconds, `first_due`, `attempt`, `deliveries`, `fencing_token`, `headers` and `payload`. A
/// payload that is not JSON is in `payload_base64` instead.
#[derive(Debug)]
pub struct RedisListForward {
    server: Server,
    list: String,
}

impl RedisStreamForward {
    /// Checks the settings without connecting.
    ///
    /// # Errors
    /// `Config` naming the unusable setting.
    pub fn new(settings: RedisStreamSettings) -> Result<Self> {
        let RedisStreamSettings { url, stream, max_len } = settings;
        if max_len == Some(0) {
            return Err(invalid_setting("`max_len` is 0", "set it to 1 or more, or remove it"));
        }
        Ok(Self { server: Server::new(&url)?, stream, max_len })
    }
}

impl RedisListForward {
    /// Checks the settings without connecting.
    ///
    /// # Errors
    /// `Config` naming the unusable setting.
    pub fn new(settings: RedisListSettings) -> Result<Self> {
        Ok(Self { server: Server::new(&settings.url)?, list: settings.list })
    }
}

#[async_trait]
impl RawHandler for RedisStreamForward {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let mut xadd = cmd("XADD");
        xadd.arg(&self.stream);
        if let Some(max_len) = self.max_len {
            xadd.arg("MAXLEN").arg("~").arg(max_len);
        }
        xadd.arg("*");
        xadd.arg("id").arg(job.id().to_string());
        xadd.arg("queue").arg(job.queue().as_str());
        if let Some(key) = job.key() {
            xadd.arg("key").arg(key.as_str());
        }
        xadd.arg("due").arg(job.due().as_millis());
        xadd.arg("first-due").arg(job.first_due().as_millis());
        xadd.arg("attempt").arg(job.attempt());
        xadd.arg("deliveries").arg(job.deliveries());
        xadd.arg("fencing-token").arg(job.fencing_token().0);
        xadd.arg("content-type").arg(content_type(&job));
        for (name, value) in other_headers(&job) {
            xadd.arg(format!("header:{name}")).arg(value);
        }
        xadd.arg("payload").arg(&job.raw_payload()[..]);
        self.server.run(&xadd).await?;
        Ok(Outcome::Done)
    }
}

#[async_trait]
impl RawHandler for RedisListForward {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let mut lpush = cmd("LPUSH");
        lpush.arg(&self.list).arg(serde_json::to_vec(&Envelope::new(&job))?);
        self.server.run(&lpush).await?;
        Ok(Outcome::Done)
    }
}

fn content_type(job: &JobContext) -> &str {
    job.headers().get(Headers::CONTENT_TYPE).unwrap_or("application/json")
}

fn other_headers(job: &JobContext) -> impl Iterator<Item = (&str, &str)> {
    job.headers().iter().filter(|(name, _)| *name != Headers::CONTENT_TYPE)
}

/// A list element.
#[derive(Serialize)]
struct Envelope<'a> {
    id: String,
    queue: &'a str,
    key: Option<&'a str>,
    due: i64,
    first_due: i64,
    attempt: u32,
    deliveries: u32,
    fencing_token: u64,
    headers: &'a Headers,
    /// Unparsed, because parsing would round large numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl<'a> Envelope<'a> {
    fn new(job: &'a JobContext) -> Self {
        let payload = match Headers::is_json(content_type(job)) {
            true => serde_json::from_slice::<&RawValue>(job.raw_payload()).ok(),
            false => None,
        };
        Self {
            id: job.id().to_string(),
            queue: job.queue().as_str(),
            key: job.key().map(|key| key.as_str()),
            due: job.due().as_millis(),
            first_due: job.first_due().as_millis(),
            attempt: job.attempt(),
            deliveries: job.deliveries(),
            fencing_token: job.fencing_token().0,
            headers: job.headers(),
            payload,
            payload_base64: payload.is_none().then(|| STANDARD.encode(job.raw_payload())),
        }
    }
}

/// Connects at the first command, and again when the connection breaks.
pub(crate) struct Server {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Server {
    /// # Errors
    /// `Config` if the URL is malformed.
    pub(crate) fn new(url: &Secret) -> Result<Self> {
        let invalid = || {
            invalid_setting(
                "`url` is not the URL of a Redis server",
                "write it like redis://user:password@host:6379/0",
            )
        };
        crate::tls::install_provider();
        let info = url.expose().into_connection_info().map_err(|_| invalid())?;
        let client = Client::open(info).map_err(|_| invalid())?;
        Ok(Self { client, connection: Mutex::default() })
    }

    /// Host, port and database, without the password.
    pub(crate) fn address(&self) -> String {
        let info = self.client.get_connection_info();
        let server = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                authority(host, *port)
            }
            other => other.to_string(),
        };
        format!("{server}/{}", info.redis_settings().db())
    }

    /// Runs a command. After an error it may still have taken effect.
    async fn run(&self, command: &Cmd) -> Result<(), BoxError> {
        // Each waiting job makes its own connection attempt in turn, so this limit covers the wait,
        // too.
        let ran = tokio::time::timeout(TIMEOUT, self.try_run(command)).await;
        ran.map_err(|_| format!("Redis has not answered within {TIMEOUT:?}"))?
    }

    async fn try_run(&self, command: &Cmd) -> Result<(), BoxError> {
        let mut connection = self.connection().await?;
        let result: redis::RedisResult<redis::Value> = command.query_async(&mut connection).await;
        if result.is_err() {
            // Reconnect after an error reply, too: a server that became a replica rejects writes.
            *self.connection.lock().await = None;
        }
        result?;
        Ok(())
    }

    async fn connection(&self) -> Result<MultiplexedConnection, BoxError> {
        // Held while connecting, so that concurrent jobs share the connection.
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let new = self.connect().await?;
        *connection = Some(new.clone());
        Ok(new)
    }

    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, BoxError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

impl fmt::Debug for Server {
    /// Hides the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

dq_core::register_forward! {
    name: "redis-stream",
    open: |settings| Ok(Arc::new(RedisStreamForward::new(settings.deserialize()?)?)),
}

dq_core::register_forward! {
    name: "redis-list",
    open: |settings| Ok(Arc::new(RedisListForward::new(settings.deserialize()?)?)),
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn an_ipv6_address_is_shown_in_brackets() {
        for (url, shown) in [
            ("redis://u:p@[::1]:7/2", "[::1]:7/2"),
            ("rediss://[fd00::5]", "[fd00::5]:6379/0"),
            ("redis://h", "h:6379/0"),
            ("unix:///run/redis.sock", "/run/redis.sock/0"),
        ] {
            assert_eq!(Server::new(&Secret::new(url)).unwrap().address(), shown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_jobs_wait_no_longer_than_one_for_a_server_that_does_not_answer() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}/", silent.local_addr().unwrap());
        let server = Arc::new(Server::new(&Secret::new(url)).unwrap());
        let start = Instant::now();
        let mut jobs = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let server = Arc::clone(&server);
            jobs.spawn(async move { server.run(&cmd("PING")).await.map_err(|e| e.to_string()) });
        }
        while let Some(ran) = jobs.join_next().await {
            assert!(ran.unwrap().is_err());
        }
        let waited = start.elapsed();
        assert!(waited < TIMEOUT + Duration::from_secs(1), "{waited:?}");
    }
}
