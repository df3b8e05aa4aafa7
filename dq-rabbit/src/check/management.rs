//! The broker's management API, for facts that AMQP does not report.

use std::path::Path;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Error, ErrorKind, Result, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Certificate, Client, StatusCode, redirect};
use serde_json::Value;

/// The time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) body: Value,
    /// The responding node's time in whole seconds, up to two seconds old.
    pub(crate) date: Option<Timestamp>,
}

#[derive(Debug)]
pub(crate) struct ManagementApi {
    /// With the login.
    url: Secret,
    vhost: String,
    /// Fails without usable certificates, which does not keep the log from being opened.
    client: Result<Client>,
}

impl ManagementApi {
    /// Trusts the certificates in the file `ca`, or else the operating system's.
    pub(crate) fn new(url: Secret, vhost: String, ca: Option<&Path>) -> Self {
        let client = client(ca, url.expose().starts_with("https"));
        Self { url, vhost, client }
    }

    /// Lists these columns of the virtual host's queues. Other virtual hosts may have queues of the
    /// same names.
    pub(crate) async fn queues(&self, columns: &str) -> Result<Value> {
        let vhost = utf8_percent_encode(&self.vhost, NON_ALPHANUMERIC);
        self.get(format!("queues/{vhost}?columns={columns}")).await
    }

    /// Sends `GET /api/…` and returns the response's body.
    ///
    /// # Errors
    /// `Config` if the API rejects user and password, else `Unavailable`.
    pub(crate) async fn get(&self, path: impl Into<String>) -> Result<Value> {
        Ok(self.response(path).await?.body)
    }

    pub(crate) async fn response(&self, path: impl Into<String>) -> Result<ApiResponse> {
        let url = format!("{}/api/{}", self.url.expose().trim_end_matches('/'), path.into());
        // Texts of errors may contain the URL.
        let response = self.client.clone()?.get(url).send().await.map_err(|error| {
            failed(match error.is_timeout() {
                true => "it does not respond in time",
                false => "it cannot be reached",
            })
        })?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "the management API rejects this user and password",
                )
                .remedy("give the user the tag `monitoring`, or check the field `management`")
                .operation("check"));
            }
            status => return Err(failed(&format!("it responds with status {status}"))),
        }
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok()).map(Timestamp::from);
        let text = response.bytes().await.map_err(|_| failed("its response is incomplete"))?;
        let body = serde_json::from_slice(&text).map_err(|_| failed("its response is not JSON"))?;
        Ok(ApiResponse { body, date })
    }
}

fn client(ca: Option<&Path>, tls: bool) -> Result<Client> {
    // Has no effect if the application has installed a provider.
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = Client::builder()
        .timeout(TIMEOUT)
        // A redirection could take the password to another host.
        .redirect(redirect::Policy::none());
    let client = match ca {
        Some(path) => client.tls_certs_only(certificates(path)?),
        None if tls => client,
        // Without the system's certificates, which a container may lack.
        None => client.tls_certs_only([]),
    };
    client.build().map_err(|_| failed("the trusted certificates are not valid"))
}

fn certificates(path: &Path) -> Result<Vec<Certificate>> {
    let text =
        std::fs::read(path).map_err(|_| failed("the trusted certificates cannot be read"))?;
    Certificate::from_pem_bundle(&text).map_err(|_| failed("the trusted certificates are not PEM"))
}

/// The operation `check` tells connecting that the log can be opened all the same.
fn failed(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the management API cannot be used: {why}"))
        .remedy("enable the plugin `rabbitmq_management`, and check the field `management`")
        .operation("check")
}
