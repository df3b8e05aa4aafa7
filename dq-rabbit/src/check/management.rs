//! The broker's management API, for facts that AMQP does not report.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Error, ErrorKind, Result, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::topology::names::base64;

/// For one request.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) body: Value,
    /// The responding node's time in whole seconds, up to two seconds old.
    pub(crate) date: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub(crate) struct ManagementApi {
    url: Secret,
    vhost: String,
    ca: Option<PathBuf>,
}

impl ManagementApi {
    pub(crate) fn new(url: Secret, vhost: String, ca: Option<PathBuf>) -> Self {
        Self { url, vhost, ca }
    }

    /// Lists these columns of the virtual host's queues. Other virtual hosts may have queues of the
    /// same names.
    pub(crate) async fn queues(&self, columns: &str) -> Result<Value> {
        let vhost = utf8_percent_encode(&self.vhost, NON_ALPHANUMERIC);
        self.get(format!("queues/{vhost}?columns={columns}")).await
    }

    /// Returns the body of the response to `GET /api/…`.
    ///
    /// # Errors
    /// `Config` if the API rejects user and password, else `Unavailable`.
    pub(crate) async fn get(&self, path: impl Into<String>) -> Result<Value> {
        Ok(self.response(path.into()).await?.body)
    }

    pub(crate) async fn response(&self, path: impl Into<String>) -> Result<ApiResponse> {
        let (this, path) = (self.clone(), path.into());
        let requested = tokio::task::spawn_blocking(move || this.request(&path)).await;
        requested.unwrap_or_else(|_| Err(failed("the request was cancelled".to_owned())))
    }

    fn request(&self, path: &str) -> Result<ApiResponse> {
        let (base, login) = split_login(self.url.expose());
        // A redirection could take the password to another host.
        let mut config =
            ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0);
        if base.starts_with("https") {
            config = config.tls_config(self.tls()?);
        }
        let agent: ureq::Agent = config.build().into();
        let mut request = agent.get(format!("{base}/api/{path}"));
        if let Some(login) = login {
            request = request.header("authorization", basic_authorization(&login));
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(ureq::Error::StatusCode(401 | 403)) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "the management API rejects this user and password",
                )
                .remedy("give the user the tag `monitoring`, or check the field `management`")
                .operation("check"));
            }
            // The error shows only their kinds, because the texts may contain the URL.
            Err(ureq::Error::StatusCode(code)) => {
                return Err(failed(format!("it responds with status {code}")));
            }
            Err(ureq::Error::Io(error)) => return Err(failed(error.kind().to_string())),
            Err(_) => return Err(failed("it cannot be reached".to_owned())),
        };
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok()).map(Timestamp::from);
        let text = response
            .body_mut()
            .read_to_vec()
            .map_err(|_| failed("its response is incomplete, or longer than 10 MiB".to_owned()))?;
        let body = serde_json::from_slice(&text);
        let body = body.map_err(|_| failed("its response is not JSON".to_owned()))?;
        Ok(ApiResponse { body, date })
    }

    fn tls(&self) -> Result<TlsConfig> {
        let unusable = |what: &str| failed(format!("the trusted certificates {what}"));
        let trusted: Vec<CertificateDer<'static>> = match &self.ca {
            Some(path) => {
                let text = std::fs::read(path).map_err(|_| unusable("cannot be read"))?;
                let certificates: std::result::Result<_, _> =
                    CertificateDer::pem_slice_iter(&text).collect();
                certificates.map_err(|_| unusable("are not PEM"))?
            }
            None => rustls_native_certs::load_native_certs().certs,
        };
        let trusted: Vec<_> =
            trusted.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::Specific(Arc::new(trusted)))
            .build())
    }
}

/// Splits the login from a URL.
fn split_login(url: &str) -> (String, Option<Vec<u8>>) {
    let url = url.trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    match rest.rsplit_once('@') {
        None => (url.to_owned(), None),
        Some((login, host)) => {
            let login = percent_decode_str(login).collect();
            (format!("{scheme}://{host}"), Some(login))
        }
    }
}

/// The value of the header `authorization`.
fn basic_authorization(login: &[u8]) -> String {
    let mut text = base64(login, ['+', '/']);
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    format!("Basic {text}")
}

/// The operation `check` tells connecting that the log can be opened all the same.
fn failed(why: String) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the management API cannot be used: {why}"))
        .remedy("enable the plugin `rabbitmq_management`, and check the field `management`")
        .operation("check")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_split_from_the_url_and_encoded() {
        assert_eq!(basic_authorization(b"guest:guest"), "Basic Z3Vlc3Q6Z3Vlc3Q=");
        assert_eq!(basic_authorization(b"user:pass"), "Basic dXNlcjpwYXNz");
        assert_eq!(basic_authorization(b"a"), "Basic YQ==");
        assert_eq!(split_login("http://h:1/"), ("http://h:1".to_owned(), None));
        let (url, login) = split_login("https://u:p%40x@h:1");
        assert_eq!((url.as_str(), login.as_deref()), ("https://h:1", Some(&b"u:p@x"[..])));
    }
}
