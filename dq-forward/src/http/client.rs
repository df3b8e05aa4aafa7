//! Sends each request on its own connection.
//!
//! The client resolves the name itself and connects to a checked address. An HTTP library would
//! resolve the name again, perhaps to another address.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{BoxError, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::address::{AddressPolicy, Resolve, SystemResolver};
use super::settings::HttpSettings;
use crate::error::invalid_setting;

/// How much of a failure's body goes into the failure reason.
const EXCERPT_BYTES: usize = 256;
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The start of the body; empty for a success.
    pub(super) excerpt: String,
}

#[derive(Debug)]
pub(super) struct Client {
    host: String,
    port: u16,
    pub(super) host_header: HeaderValue,
    tls: Option<Tls>,
    timeout: Duration,
    policy: AddressPolicy,
    pub(super) resolver: Arc<dyn Resolve>,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls({:?})", self.name)
    }
}

impl Client {
    /// Returns a client for the URL's host, and the URL's path and query.
    ///
    /// # Errors
    /// `Config` if the URL or the certificates are unusable, or the URL has a forbidden address.
    pub(super) fn new(settings: &HttpSettings, policy: AddressPolicy) -> Result<(Self, Uri)> {
        let invalid = |what: &str| {
            invalid_setting(
                format!("`url` {what}"),
                "write it like https://host/path, with logins and tokens in `headers`",
            )
        };
        let url: Uri = settings.url.expose().parse().map_err(|_| invalid("is not a URL"))?;
        let is_tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid("begins neither with https:// nor with http://")),
        };
        let authority = url.authority().ok_or_else(|| invalid("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("has a login"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(invalid("has no host"));
        }
        policy.check_host(&host)?;
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = match is_tls {
            true => Some(tls(settings, &host)?),
            false if settings.ca.is_some() => {
                return Err(invalid_setting(
                    "`ca` is set, but `url` does not begin with https://",
                    "remove one",
                ));
            }
            false => None,
        };
        let host_header =
            HeaderValue::from_str(authority.as_str()).map_err(|_| invalid("is not a URL"))?;
        let target = url.path_and_query().map_or("/", |path| path.as_str());
        let target = target.parse().map_err(|_| invalid("is not a URL"))?;
        let timeout = settings.timeout;
        let resolver = Arc::new(SystemResolver);
        Ok((Self { host, port, host_header, tls, timeout, policy, resolver }, target))
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// If the name resolves to no allowed address, the connection fails, or no answer arrives in
    /// time. The receiver may have processed the request.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
        let exchanged = tokio::time::timeout(self.timeout, self.exchange(request)).await;
        let (response, _connection) =
            exchanged.map_err(|_| format!("no answer within {:?}", self.timeout))??;
        let (head, body) = response.into_parts();
        // Only the status matters, so a missing body is no error.
        let excerpt = if head.status.is_success() { String::new() } else { excerpt(body).await };
        Ok(Answer { status: head.status, headers: head.headers, excerpt })
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Exchanged, BoxError> {
        let deadline = Instant::now() + self.timeout;
        let addresses = self.addresses().await?;
        let stream = connect(&addresses, deadline).await?;
        match &self.tls {
            Some(Tls { connector, name }) => {
                let stream = connector.connect(name.clone(), stream).await;
                exchange(stream.map_err(|error| format!("TLS: {error}"))?, request).await
            }
            None => exchange(stream, request).await,
        }
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, BoxError> {
        let host = &self.host;
        let resolved = self.resolver.resolve(host, self.port).await;
        let resolved = resolved.map_err(|error| format!("{host} does not resolve: {error}"))?;
        let (permitted, refused): (Vec<_>, Vec<_>) =
            resolved.into_iter().partition(|address| self.policy.permits(address.ip()));
        if permitted.is_empty() {
            let refused: Vec<_> = refused.iter().map(|address| address.ip().to_string()).collect();
            return Err(match refused.is_empty() {
                true => format!("{host} has no address").into(),
                false => format!(
                    "{host} has no public address, but {}; if requests should go there, add it to \
                     `allow`",
                    refused.join(", ")
                )
                .into(),
            });
        }
        Ok(permitted)
    }
}

/// Connects to the first address that accepts. Each gets an equal share of the remaining time, so
/// that a silent one leaves time for the next.
async fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, BoxError> {
    let mut failure = io::Error::other("no address");
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let part = deadline.saturating_duration_since(Instant::now()) / left;
        match tokio::time::timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(format!("cannot connect: {failure}").into())
}

/// A response, and the task that drives its connection. Dropping this aborts the task.
type Exchanged = (Response<Incoming>, JoinSet<hyper::Result<()>>);

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Exchanged, BoxError> {
    let failed = |error: hyper::Error| -> BoxError { format!("no answer: {error}").into() };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let response = sender.send_request(request).await.map_err(failed)?;
    Ok((response, connections))
}

/// Replaces control characters.
async fn excerpt(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < EXCERPT_BYTES {
            let Some(Ok(frame)) = body.frame().await else { break };
            bytes.extend(frame.into_data().unwrap_or_default());
        }
    };
    let _ = tokio::time::timeout(EXCERPT_TIMEOUT, read).await;
    bytes.truncate(EXCERPT_BYTES);
    let text = String::from_utf8_lossy(&bytes);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

/// Trusts the certificates in `ca`, or else the operating system's.
fn tls(settings: &HttpSettings, host: &str) -> Result<Tls> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| invalid_setting("`url` has no valid host name", "correct it"))?;
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        Some(path) => {
            let unusable = |why: &str| {
                invalid_setting(
                    format!("the file of `ca`, {}, {why}", path.display()),
                    "set `ca` to a PEM file with the certificates of your certificate authority",
                )
            };
            let text = std::fs::read(path)
                .map_err(|error| unusable(&format!("cannot be read: {error}")))?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
                let certificate = certificate.map_err(|_| unusable("is not PEM"))?;
                roots.add(certificate).map_err(|_| unusable("has an unusable certificate"))?;
            }
            if roots.is_empty() {
                return Err(unusable("has no certificate"));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid_setting(format!("TLS cannot be used: {error}"), "report this"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// An address that does not answer connection attempts, because its accept queue is full.
    async fn silent() -> (SocketAddr, Box<dyn std::any::Any>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) =
            tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await
        {
            waiting.push(stream.unwrap());
        }
        (address, Box::new((listener, waiting)))
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_to_the_next() {
        let (silent, _full) = silent().await;
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = (good.local_addr().unwrap(), good);
        let addresses = [silent, good.0];
        let connecting = connect(&addresses, Instant::now() + Duration::from_secs(30));
        let connected = tokio::time::timeout(Duration::from_secs(120), connecting);
        let stream = connected.await.expect("the first address takes all of the time").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good.0);
    }
}
