//! The management API of the broker, for what AMQP does not tell.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Error, ErrorKind, Result, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Time for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the management API answers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Value,
    /// The time of the server that answers, in whole seconds and up to two seconds old.
    pub(crate) date: Option<Timestamp>,
}

/// Asks the management API.
#[derive(Debug, Clone)]
pub(crate) struct Management {
    url: Secret,
    ca: Option<PathBuf>,
}

impl Management {
    pub(crate) fn new(url: Secret, ca: Option<PathBuf>) -> Self {
        Self { url, ca }
    }

    /// The answer to `GET /api/…`.
    ///
    /// # Errors
    /// `Config` when user and password are refused, `Unavailable` for all else.
    pub(crate) async fn get(&self, path: &'static str) -> Result<Value> {
        Ok(self.answer(path).await?.body)
    }

    /// As [`get`](Self::get), with the time of the answer.
    pub(crate) async fn answer(&self, path: &'static str) -> Result<Answer> {
        let this = self.clone();
        let asked = tokio::task::spawn_blocking(move || this.ask(path)).await;
        asked.unwrap_or_else(|_| Err(failed("the question was broken off".to_owned())))
    }

    fn ask(&self, path: &str) -> Result<Answer> {
        let (base, login) = split(self.url.expose());
        let mut config =
            ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).max_redirects(0);
        if base.starts_with("https") {
            config = config.tls_config(self.tls()?);
        }
        let agent: ureq::Agent = config.build().into();
        let mut request = agent.get(format!("{base}/api/{path}"));
        if let Some(login) = login {
            request = request.header("authorization", format!("Basic {}", in_64(&login)));
        }
        let mut answer = match request.call() {
            Ok(answer) => answer,
            Err(ureq::Error::StatusCode(401 | 403)) => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "the management API refuses this user and password",
                )
                .remedy("give the user the tag `monitoring`, or check the field `management`")
                .operation("check"));
            }
            // The text of the error may hold the URL, with its password.
            Err(ureq::Error::StatusCode(code)) => return Err(failed(format!("it answers {code}"))),
            Err(ureq::Error::Io(error)) => return Err(failed(error.kind().to_string())),
            Err(_) => return Err(failed("it cannot be reached".to_owned())),
        };
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok()).map(Timestamp::from);
        let text =
            answer.body_mut().read_to_vec().map_err(|_| failed("it broke off".to_owned()))?;
        let body = serde_json::from_slice(&text);
        let body = body.map_err(|_| failed("it does not answer with JSON".to_owned()))?;
        Ok(Answer { body, date })
    }

    fn tls(&self) -> Result<TlsConfig> {
        let unusable = |what: &str| failed(format!("the certificates to trust {what}"));
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

/// The URL without its login, and the login as it goes into the header.
fn split(url: &str) -> (String, Option<Vec<u8>>) {
    let url = url.trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    match rest.rsplit_once('@') {
        None => (url.to_owned(), None),
        Some((login, host)) => {
            let login = percent_encoding::percent_decode_str(login).collect();
            (format!("{scheme}://{host}"), Some(login))
        }
    }
}

/// Base64, as HTTP wants a login.
fn in_64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = chunk.iter().fold(0u32, |sum, byte| (sum << 8) | u32::from(*byte));
        let three = three << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let six = (three >> (18 - 6 * place)) & 63;
            let is_padding = place > chunk.len();
            text.push(if is_padding { '=' } else { ALPHABET[six as usize] as char });
        }
    }
    text
}

fn failed(why: String) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the management API cannot be asked: {why}"))
        .remedy("enable the plugin `rabbitmq_management`, and check the field `management`")
        .operation("check")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_taken_out_and_encoded() {
        assert_eq!(in_64(b"guest:guest"), "Z3Vlc3Q6Z3Vlc3Q=");
        assert_eq!(in_64(b"user:pass"), "dXNlcjpwYXNz");
        assert_eq!(in_64(b"a"), "YQ==");
        assert_eq!(split("http://h:1/"), ("http://h:1".to_owned(), None));
        let (url, login) = split("https://u:p%40x@h:1");
        assert_eq!((url.as_str(), login.as_deref()), ("https://h:1", Some(&b"u:p@x"[..])));
    }
}
