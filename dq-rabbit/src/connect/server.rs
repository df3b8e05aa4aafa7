//! The broker or its nodes, and how a connection to one of them is made.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Entropy, Error, ErrorKind, Result};
use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::lookup_host;

use super::address::Address;
use super::cut::Cut;
use super::url;

/// What is said of the broker in the settings.
#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) url: Secret,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) response_timeout: Duration,
    /// What names begin with, for what is said of lacking rights.
    pub(crate) prefix: String,
}

/// Time for one node to take a connection. Not a setting: a node that does not answer in this time is
/// asked again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// After twice this time without a sign of the other side, a connection counts as lost.
const HEARTBEAT_SECONDS: u16 = 10;

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// The broker, or the nodes of its cluster.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) response_timeout: Duration,
    pub(crate) prefix: String,
    pub(crate) entropy: Arc<Entropy>,
    tls: Option<Arc<RustlsConnector>>,
    /// The node to begin with.
    next: AtomicUsize,
}

/// A connection, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) connection: Connection,
    // After the connection, so that its farewell is queued first.
    _cut: Cut,
}

/// Reads the settings without use of them.
pub(crate) fn check(settings: &ServerSettings) -> Result<()> {
    Server::new(settings, Arc::new(Entropy::seeded(0))).map(drop)
}

impl Server {
    /// Reads the settings; connects to nothing.
    pub(crate) fn new(settings: &ServerSettings, entropy: Arc<Entropy>) -> Result<Self> {
        let url = url::read(&settings.url)?;
        patient(settings.response_timeout)?;
        let address = Address::parse(url.scheme(), url.address())?;
        let tls = tls(settings, address.tls)?;
        Ok(Self {
            address,
            response_timeout: settings.response_timeout,
            prefix: settings.prefix.clone(),
            entropy,
            tls,
            next: AtomicUsize::new(0),
        })
    }

    /// Begins with another node next time, if there are others.
    pub(crate) fn skip(&self) -> bool {
        self.next.fetch_add(1, Ordering::Relaxed);
        self.address.hosts.len() > 1
    }

    /// Connects to the first node that takes us, beginning after the one that was tried last. If none
    /// does, the error is that of the node which said most.
    pub(super) async fn connect(&self, purpose: &'static str) -> lapin::Result<Wire> {
        let mut worst: Option<lapin::Error> = None;
        for _ in 0..self.address.hosts.len() {
            let place = self.next.fetch_add(1, Ordering::Relaxed) % self.address.hosts.len();
            let (host, port) = &self.address.hosts[place];
            match self.connect_to(host, *port, purpose).await {
                Ok(wire) => {
                    // Others of this process meet at the same node; nothing has to be faster for it.
                    self.next.store(place, Ordering::Relaxed);
                    return Ok(wire);
                }
                Err(error) => {
                    let says_more = worst.as_ref().is_none_or(lapin::Error::is_io_error);
                    if says_more {
                        worst = Some(error);
                    }
                }
            }
        }
        Err(worst.expect("an address has at least one host"))
    }

    async fn connect_to(&self, host: &str, port: u16, purpose: &str) -> lapin::Result<Wire> {
        let cut = Cut::default();
        let slot = cut.slot();
        let tls = self.tls.clone();
        let runtime = lapin::runtime::default_runtime()?;
        // Not in the client's own thread, which panics if the program ends while it resolves a name.
        let resolving = tokio::time::timeout(CONNECT_TIMEOUT, lookup_host((host, port)));
        let resolved = resolving.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let places: Vec<SocketAddr> = resolved?.collect();
        let connecting = Connection::connector(
            self.uri(host, port),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let opening = async {
                    let stream = AsyncTcpStream::connect(&runtime, places.clone()).await?;
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        slot.keep(stream.get_ref())?;
                    }
                    match &tls {
                        Some(tls) => stream.into_rustls(tls, &uri.authority.host).await,
                        None => Ok(stream),
                    }
                };
                let opened = tokio::time::timeout(CONNECT_TIMEOUT, opening).await;
                opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Into::into)
            },
            properties(purpose),
        );
        // The client's own futures are large and deep.
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, Box::pin(connecting)).await;
        match connected {
            Ok(connected) => Ok(Wire { connection: connected?, _cut: cut }),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }

    fn uri(&self, host: &str, port: u16) -> AMQPUri {
        AMQPUri {
            scheme: if self.address.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.address.user.clone(),
                    password: self.address.password.clone(),
                },
                host: host.to_owned(),
                port,
            },
            vhost: self.address.vhost.clone(),
            query: AMQPQueryString {
                heartbeat: Some(HEARTBEAT_SECONDS),
                ..AMQPQueryString::default()
            },
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address.shown()).finish_non_exhaustive()
    }
}

/// What the broker shows of us in its lists.
fn properties(purpose: &str) -> ConnectionProperties {
    let name = format!("dq {purpose} (process {})", std::process::id());
    ConnectionProperties::default().with_connection_name(name.into())
}

/// Refuses times in which no broker answers, and those that no clock counts to.
fn patient(response_timeout: Duration) -> Result<()> {
    if (SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&response_timeout) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        format!("the field `response_timeout` is {response_timeout:?}"),
    )
    .remedy("give the broker between 10ms and 1 day to answer; it has 5s unless this is set")
    .operation("connect"))
}

/// Whom to believe: the system, or the one authority that was named.
fn tls(settings: &ServerSettings, tls: bool) -> Result<Option<Arc<RustlsConnector>>> {
    if !tls {
        return match settings.ca {
            None => Ok(None),
            Some(_) => Err(refused("the field `ca` is given, but the URL does not ask for TLS")
                .remedy("begin the URL with amqps://")),
        };
    }
    // Whoever set another provider for the whole process keeps it.
    rustls::crypto::ring::default_provider().install_default().ok();
    let trusted = match &settings.ca {
        None => RustlsConnectorConfig::new_with_native_certs().map_err(|error| {
            refused("the certificates of the system cannot be read")
                .remedy("give the certificate of the broker's authority as `ca`")
                .source(error)
        })?,
        Some(path) => {
            let unusable = |why: &str| {
                refused(format!("the file of `ca`, {}, {why}", path.display()))
                    .remedy("give the path of a PEM file with the certificate of your authority")
            };
            let text =
                std::fs::read(path).map_err(|error| unusable("cannot be read").source(error))?;
            let certificates = CertificateDer::pem_slice_iter(&text)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| unusable("is not PEM").source(error))?;
            if certificates.is_empty() {
                return Err(unusable("holds no certificate"));
            }
            RustlsConnectorConfig::default().with_parsable_certificates(certificates)
        }
    };
    let connector = trusted.connector_with_no_client_auth().map_err(|error| {
        refused("TLS cannot be set up with these certificates")
            .remedy("check the file of `ca`, or the certificates of the system")
            .source(error)
    })?;
    Ok(Some(Arc::new(connector)))
}

fn refused(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Config, what).operation("connect")
}
