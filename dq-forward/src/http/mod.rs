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
use http_body_util::Full;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub use address::{Resolve, SystemResolver};
pub use settings::HttpSettings;

use self::address::AddressPolicy;
use self::answer::DeadOn;
use self::client::Client;
use self::signature::Signer;
use crate::error::invalid_setting;

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
    dead_on: DeadOn,
    signer: Signer,
    headers: HeaderMap,
    /// Path and query.
    target: Uri,
}

impl HttpForward {
    /// Checks the settings without connecting.
    ///
    /// # Errors
    /// `Config` naming the unusable setting.
    pub fn new(settings: HttpSettings) -> Result<Self> {
        if !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&settings.timeout) {
            return Err(invalid_setting(
                format!("`timeout` is {:?}", settings.timeout),
                "set it between 10ms and 1h; the default is 30s",
            ));
        }
        let policy = AddressPolicy::new(&settings.allow)?;
        let (client, target) = Client::new(&settings, policy)?;
        Ok(Self {
            client,
            dead_on: DeadOn::new(&settings.dead_on)?,
            signer: Signer::new(&settings.secrets)?,
            headers: fixed_headers(&settings.headers)?,
            target,
        })
    }

    /// Replaces the operating system's resolver.
    #[must_use]
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.client.resolver = Arc::new(resolver);
        self
    }

    fn request(&self, job: &JobContext) -> Result<Request<Full<bytes::Bytes>>, BoxError> {
        let mut headers = self.headers.clone();
        let content_type = job.headers().get(Headers::CONTENT_TYPE).unwrap_or("application/json");
        headers.insert("content-type", HeaderValue::from_str(content_type)?);
        if let Some(traceparent) = job.headers().get(Headers::TRACEPARENT) {
            headers.insert("traceparent", HeaderValue::from_str(traceparent)?);
        }
        let id = job.id().to_string();
        let timestamp = job.now().as_millis() / 1_000;
        if let Some(signature) = self.signer.sign(&id, timestamp, job.raw_payload()) {
            headers.insert("webhook-signature", HeaderValue::from_str(&signature)?);
        }
        headers.insert("webhook-id", HeaderValue::from_str(&id)?);
        headers.insert("webhook-timestamp", HeaderValue::from(timestamp));
        headers.insert("dq-queue", percent_encoded(job.queue().as_str())?);
        if let Some(key) = job.key() {
            headers.insert("dq-key", percent_encoded(key.as_str())?);
        }
        headers.insert("dq-due", HeaderValue::from_str(&job.due().to_string())?);
        headers.insert("dq-first-due", HeaderValue::from_str(&job.first_due().to_string())?);
        headers.insert("dq-attempt", job.attempt().into());
        headers.insert("dq-deliveries", job.deliveries().into());
        headers.insert("dq-fencing-token", job.fencing_token().0.into());
        if let Some(occurrence) = job.occurrence() {
            headers.insert("dq-occurrence", HeaderValue::from_str(&occurrence.to_string())?);
        }
        headers.insert("host", self.client.host_header.clone());
        let mut request = Request::new(Full::new(job.raw_payload().clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl fmt::Debug for HttpForward {
    /// Hides path and headers, which may hold tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpForward").field("client", &self.client).finish_non_exhaustive()
    }
}

#[async_trait]
impl RawHandler for HttpForward {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let answer = self.client.send(self.request(&job)?).await?;
        self.dead_on.outcome(&answer, job.now())
    }
}

/// Header values can hold only a part of ASCII.
fn percent_encoded(text: &str) -> Result<HeaderValue, BoxError> {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    Ok(HeaderValue::from_str(&utf8_percent_encode(text, &ENCODED).to_string())?)
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
    map.entry("user-agent")
        .or_insert(HeaderValue::from_static(concat!("dq-forward/", env!("CARGO_PKG_VERSION"))));
    Ok(map)
}

dq_core::register_forward! {
    name: "http",
    open: |settings| Ok(Arc::new(HttpForward::new(settings.deserialize()?)?)),
}
