//! The forward type `redis-list`.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dq_core::config::Secret;
use dq_core::{HandlerResult, Headers, JobContext, Outcome, RawHandler, Result};
use redis::cmd;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::server::Server;
use crate::job::content_type;

/// List settings (`type = "redis-list"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisListSettings {
    /// The server, as in [`RedisStreamSettings::url`](super::RedisStreamSettings::url).
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
impl RawHandler for RedisListForward {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let mut lpush = cmd("LPUSH");
        lpush.arg(&self.list).arg(serde_json::to_vec(&Envelope::new(&job))?);
        self.server.run(&lpush).await?;
        Ok(Outcome::Done)
    }
}

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
    /// The payload stays unparsed, because parsing would round large numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl<'a> Envelope<'a> {
    fn new(job: &'a JobContext) -> Self {
        let payload = if Headers::is_json(content_type(job)) {
            serde_json::from_slice::<&RawValue>(job.raw_payload()).ok()
        } else {
            None
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

dq_core::register_forward! {
    name: "redis-list",
    open: |settings| Ok(Arc::new(RedisListForward::new(settings.deserialize()?)?)),
}
