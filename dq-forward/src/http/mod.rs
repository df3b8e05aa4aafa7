//! Webhooks: a signed HTTP request per job.

mod address;
mod answer;
mod client;
mod settings;
mod signature;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::Secret;
use dq_core::{BoxError, Error, HandlerResult, Headers, JobContext, RawHandler, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

pub use address::Resolve;
pub use settings::HttpSettings;

use self::address::SystemResolver;
use self::client::Client;
use self::signature::Signer;
use crate::error::invalid_setting;
use crate::job::content_type;

const MIN_TIMEOUT: Duration = Duration::from_millis(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Headers that the handler sets itself.
const OWN_HEADERS: [&str; 18] = [
    "connection",
    "content-length",
    "content-type",
    "dq-attempt",
    "dq-deliveries",
    "dq-due",
    "dq-fencing-token",
    "dq-first-due",
    "dq-key",
    "dq-occurrence",
    "dq-queue",
    "host",
    "traceparent",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// A handler that sends each job as a webhook.
///
/// The request is a `POST` with the payload as its body. Its headers are `content-type`,
/// `webhook-id` (the job id), `webhook-timestamp`, `webhook-signature`, the job's `traceparent`,
/// `dq-queue`, `dq-key`, `dq-due`, `dq-first-due`, `dq-attempt`, `dq-deliveries`,
/// `dq-fencing-token`, and `dq-occurrence` for a schedule's job. Queue and key are percent-encoded,
/// except for letters, digits and `-._~`.
///
/// | Answer | Outcome |
/// |---|---|
/// | 2xx | done |
/// | 410, and the statuses of [`HttpSettings::dead_on`] | dead |
/// | 429 or 503 with `Retry-After` | failed, and retried after that time, at most 1 day, and the queue's backoff |
/// | any other; no answer | failed, and retried after the queue's backoff; redirects are not followed |
///
/// Requests reach only public addresses and the ones in [`HttpSettings::allow`]. The handler
/// resolves the host once per request and connects to a checked address.
pub struct HttpForward {
    client: Client,
    dead_on: Vec<StatusCode>,
    signer: Signer,
}

impl HttpForward {
    /// Checks the settings without connecting.
    ///
    /// # Errors
    /// `Config` naming the unusable setting.
    pub fn new(settings: HttpSettings) -> Result<Self> {
        Self::with_resolver(settings, SystemResolver)
    }

    /// Like [`new`](Self::new), with a resolver in place of the operating system's.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_resolver(settings: HttpSettings, resolver: impl Resolve) -> Result<Self> {
        if !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&settings.timeout) {
            return Err(invalid_setting(
                format!("`timeout` is {:?}", settings.timeout),
                "set it between 10ms and 1h; the default is 30s",
            ));
        }
        let headers = fixed_headers(&settings.headers)?;
        Ok(Self {
            client: Client::new(&settings, headers, Arc::new(resolver))?,
            dead_on: answer::dead_on(&settings.dead_on)?,
            signer: Signer::new(&settings.secrets)?,
        })
    }

    fn headers(&self, job: &JobContext) -> Result<HeaderMap, BoxError> {
        let id = job.id().to_string();
        let timestamp = job.now().as_millis() / 1_000;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", Some(content_type(job).to_owned())),
            ("traceparent", job.headers().get(Headers::TRACEPARENT).map(str::to_owned)),
            ("webhook-signature", self.signer.sign(&id, timestamp, job.raw_payload())),
            ("webhook-id", Some(id)),
            ("webhook-timestamp", Some(timestamp.to_string())),
            ("dq-queue", Some(percent_encoded(job.queue().as_str()))),
            ("dq-key", job.key().map(|key| percent_encoded(key.as_str()))),
            ("dq-due", Some(job.due().to_string())),
            ("dq-first-due", Some(job.first_due().to_string())),
            ("dq-attempt", Some(job.attempt().to_string())),
            ("dq-deliveries", Some(job.deliveries().to_string())),
            ("dq-fencing-token", Some(job.fencing_token().0.to_string())),
            ("dq-occurrence", job.occurrence().map(|occurrence| occurrence.to_string())),
        ] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::try_from(value)?);
            }
        }
        Ok(headers)
    }
}

impl fmt::Debug for HttpForward {
    /// Hides path and headers, which may hold tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpForward").field("host", &self.client.host()).finish_non_exhaustive()
    }
}

#[async_trait]
impl RawHandler for HttpForward {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let answer = self.client.post(self.headers(&job)?, job.raw_payload().clone()).await?;
        answer::outcome(&self.dead_on, &answer, job.now())
    }
}

/// Percent-encodes a name, because header values hold only a part of ASCII.
fn percent_encoded(text: &str) -> String {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, &ENCODED).to_string()
}

fn fixed_headers(headers: &BTreeMap<String, Secret>) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(invalid_setting(
                format!("`headers` has {name:?}, which the webhook sets itself"),
                "remove it",
            ));
        }
        let invalid = |what: &str| -> Error {
            invalid_setting(
                format!("`headers`: {what} of {name:?} is not valid in HTTP"),
                "change it",
            )
        };
        let key = HeaderName::try_from(name.as_str()).map_err(|_| invalid("the name"))?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|_| invalid("the value"))?;
        value.set_sensitive(true);
        if map.insert(key, value).is_some() {
            return Err(invalid_setting(format!("`headers` has {name:?} twice"), "remove one"));
        }
    }
    Ok(map)
}

dq_core::register_forward! {
    name: "http",
    open: |settings| Ok(Arc::new(HttpForward::new(settings.deserialize()?)?)),
}
