//! The forward type `redis-stream`.

use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::Secret;
use dq_core::{HandlerResult, JobContext, Outcome, RawHandler, Result};
use redis::cmd;
use serde::Deserialize;

use super::server::Server;
use crate::error::invalid_setting;
use crate::job::{content_type, other_headers};

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

dq_core::register_forward! {
    name: "redis-stream",
    open: |settings| Ok(Arc::new(RedisStreamForward::new(settings.deserialize()?)?)),
}
