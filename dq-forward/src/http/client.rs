//! The HTTP client: one connection per request, to a permitted address, without redirects.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{BoxError, Error, Result};
use reqwest::header::HeaderMap;
use reqwest::{Certificate, ClientBuilder, Response, StatusCode, Url, redirect};

use super::address::{AddressPolicy, PermittedAddresses, Resolve};
use super::settings::HttpSettings;
use crate::error::invalid_setting;
use crate::{ca, tls};

/// How much of a failure's body goes into the failure reason.
const EXCERPT_BYTES: usize = 256;
/// How long to wait for that part of the body.
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The start of the body; empty for a success.
    pub(super) excerpt: String,
}

pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    timeout: Duration,
}

impl Client {
    /// Creates the client without connecting; `headers` go with every request. `Config` for an
    /// unusable URL or certificate, or a forbidden address.
    pub(super) fn new(
        settings: &HttpSettings,
        headers: HeaderMap,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self> {
        let policy = AddressPolicy::new(&settings.allow)?;
        let url = url(settings, &policy)?;
        let addresses = PermittedAddresses { policy: Arc::new(policy), resolver };
        tls::install_provider();
        let builder = reqwest::Client::builder()
            .http1_only()
            // A proxy would resolve the name itself.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(0)
            // A name's addresses share this time, so that a silent one leaves some for the next.
            .connect_timeout(settings.timeout)
            .user_agent(concat!("dq-forward/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .dns_resolver(addresses);
        let builder = trusting(builder, settings, &url)?;
        let http = builder.build().map_err(|error| unusable_tls(settings, error))?;
        Ok(Self { http, url, timeout: settings.timeout })
    }

    /// The host, because path and query may hold tokens.
    pub(super) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Posts a body. After an error the receiver may still have processed the request.
    pub(super) async fn post(
        &self,
        headers: HeaderMap,
        body: bytes::Bytes,
    ) -> Result<Answer, BoxError> {
        let request = self.http.post(self.url.clone()).headers(headers).body(body).send();
        let response = tokio::time::timeout(self.timeout, request).await;
        let response = response
            .map_err(|_| format!("no answer within {:?}", self.timeout))?
            .map_err(|error| match error.is_connect() {
                true => format!("cannot connect: {}", cause(error)),
                false => format!("no answer: {}", cause(error)),
            })?;
        let (status, headers) = (response.status(), response.headers().clone());
        let excerpt = if status.is_success() { String::new() } else { excerpt(response).await };
        Ok(Answer { status, headers, excerpt })
    }
}

fn url(settings: &HttpSettings, policy: &AddressPolicy) -> Result<Url> {
    let invalid = |what: &str| {
        invalid_setting(
            format!("`url` {what}"),
            "write it like https://host/path, with logins and tokens in `headers`",
        )
    };
    let url: Url = settings.url.expose().parse().map_err(|_| invalid("is not a URL"))?;
    if !["https", "http"].contains(&url.scheme()) {
        return Err(invalid("begins neither with https:// nor with http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("has a login"));
    }
    policy.check_host(url.host_str().ok_or_else(|| invalid("has no host"))?)?;
    Ok(url)
}

fn trusting(builder: ClientBuilder, settings: &HttpSettings, url: &Url) -> Result<ClientBuilder> {
    let Some(path) = &settings.ca else {
        return Ok(match url.scheme() {
            "https" => builder,
            // The system's certificates are not read, because a container may lack them.
            _ => builder.tls_certs_only([]),
        });
    };
    if url.scheme() != "https" {
        return Err(ca::without_tls("https"));
    }
    let certificates = ca::certificates(path)?;
    let trusted: Result<Vec<_>, _> =
        certificates.iter().map(|it| Certificate::from_der(it)).collect();
    Ok(builder.tls_certs_only(trusted.map_err(|error| unusable_tls(settings, error))?))
}

fn unusable_tls(settings: &HttpSettings, error: reqwest::Error) -> Error {
    let remedy = match &settings.ca {
        Some(ca) => format!("correct the certificates in {}", ca.display()),
        None => "set `ca`".to_owned(),
    };
    invalid_setting(format!("TLS cannot be used: {}", cause(error)), remedy)
}

/// Returns the text of the innermost error, without the URL.
fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Reads the body's start and replaces control characters. A missing body is no error, because
/// only the status matters.
async fn excerpt(mut response: Response) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < EXCERPT_BYTES {
            let Ok(Some(chunk)) = response.chunk().await else { break };
            bytes.extend(chunk);
        }
    };
    let _ = tokio::time::timeout(EXCERPT_TIMEOUT, read).await;
    bytes.truncate(EXCERPT_BYTES);
    let text = String::from_utf8_lossy(&bytes);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}
