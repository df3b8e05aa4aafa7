//! Opens connections to the broker's nodes.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::config::{ConnectUrl, check_response_timeout, invalid_setting};
use dq_core::{Entropy, Result};
use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::lookup_host;

use super::address::BrokerAddress;
use super::socket::{ShutdownOnDrop, store};
use crate::error::BrokerInfo;

pub(crate) struct BrokerSettings {
    pub(crate) url: ConnectUrl,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) response_timeout: Duration,
    /// Errors about missing permissions name it.
    pub(crate) prefix: String,
}

/// A node that is too slow is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How often both sides send something. A connection without data for twice this time is lost.
const HEARTBEAT_SECONDS: u16 = 10;

pub(crate) struct Broker {
    pub(crate) info: BrokerInfo,
    pub(crate) response_timeout: Duration,
    pub(super) entropy: Arc<Entropy>,
    address: BrokerAddress,
    tls: Option<Arc<RustlsConnector>>,
    /// The node that all connections in this process try first.
    first: AtomicUsize,
}

/// An open connection. Its drop shuts the socket down.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) amqp: Connection,
    // Dropped after the connection, which thus can queue `connection.close` first.
    _socket: ShutdownOnDrop,
}

impl OpenConnection {
    #[expect(clippy::disallowed_methods, reason = "it gets its limit here")]
    pub(super) async fn close(&self, timeout: Duration) {
        let closing = self.amqp.close(200, "closed by dq".into());
        tokio::time::timeout(timeout, closing).await.ok();
    }
}

impl Broker {
    /// # Errors
    /// `Config` if the address is malformed, the timeout out of range, or a certificate unusable.
    pub(crate) fn new(settings: BrokerSettings, entropy: Arc<Entropy>) -> Result<Self> {
        check_response_timeout(settings.response_timeout)?;
        let address = BrokerAddress::parse(settings.url.scheme(), settings.url.address())?;
        let tls = tls_connector(settings.ca.as_deref(), address.tls)?;
        let info =
            BrokerInfo { hosts: address.display(), tls: address.tls, prefix: settings.prefix };
        Ok(Self {
            info,
            response_timeout: settings.response_timeout,
            entropy,
            address,
            tls,
            first: AtomicUsize::new(0),
        })
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.address.vhost
    }

    /// Makes the next connections go to another node. Returns `false` if there is only one.
    pub(super) fn skip_node(&self) -> bool {
        let nodes = self.address.hosts.len();
        self.first.store((self.first.load(Ordering::Relaxed) + 1) % nodes, Ordering::Relaxed);
        nodes > 1
    }

    /// Connects to the first node that accepts, beginning with the one in use.
    ///
    /// # Errors
    /// If no node accepts: a replying node's error, else an unreachable one's.
    pub(super) async fn connect(&self, purpose: &'static str) -> lapin::Result<OpenConnection> {
        let mut failure: Option<lapin::Error> = None;
        let first = self.first.load(Ordering::Relaxed);
        let nodes = self.address.hosts.len();
        for node in (first..first + nodes).map(|node| node % nodes) {
            let (host, port) = &self.address.hosts[node];
            match self.connect_to(host, *port, purpose).await {
                Ok(connection) => {
                    // Other connections use the same node, unless it was skipped meanwhile.
                    self.first
                        .compare_exchange(first, node, Ordering::Relaxed, Ordering::Relaxed)
                        .ok();
                    return Ok(connection);
                }
                Err(error) => {
                    if failure.as_ref().is_none_or(lapin::Error::is_io_error) {
                        failure = Some(error);
                    }
                }
            }
        }
        Err(failure.expect("an address has at least one host"))
    }

    async fn connect_to(
        &self,
        host: &str,
        port: u16,
        purpose: &str,
    ) -> lapin::Result<OpenConnection> {
        let socket = ShutdownOnDrop::default();
        let slot = Arc::clone(&socket.0);
        let tls = self.tls.clone();
        let runtime = lapin::runtime::default_runtime()?;
        // The client library resolves names in a thread that panics if the program exits meanwhile.
        let lookup = tokio::time::timeout(CONNECT_TIMEOUT, lookup_host((host, port)));
        let resolved = lookup.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let addresses: Vec<SocketAddr> = resolved?.collect();
        let connecting = Connection::connector(
            self.uri(host, port),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let opening = async {
                    let stream = AsyncTcpStream::connect(&runtime, addresses.clone()).await?;
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        store(&slot, stream.get_ref())?;
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
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, Box::pin(connecting)).await;
        match connected {
            Ok(connected) => Ok(OpenConnection { amqp: connected?, _socket: socket }),
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

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").field("info", &self.info).finish_non_exhaustive()
    }
}

fn properties(purpose: &str) -> ConnectionProperties {
    let name = format!("dq {purpose} (process {})", std::process::id());
    ConnectionProperties::default().with_connection_name(name.into())
}

/// Trusts the system's certificates or the one in `ca`; `None` without TLS.
fn tls_connector(ca: Option<&Path>, tls: bool) -> Result<Option<Arc<RustlsConnector>>> {
    if !tls {
        return match ca {
            None => Ok(None),
            Some(_) => Err(invalid_setting(
                "the field `ca` is set, but the URL does not ask for TLS",
                "begin the URL with amqps://",
            )),
        };
    }
    // Has no effect if the application has installed a provider.
    rustls::crypto::ring::default_provider().install_default().ok();
    let trusted = match ca {
        None => RustlsConnectorConfig::new_with_native_certs().map_err(|error| {
            invalid_setting(
                "the certificates of the operating system cannot be read",
                "set `ca` to the certificate of the broker's certificate authority",
            )
            .source(error)
        })?,
        Some(path) => {
            let unusable = |why: &str| {
                invalid_setting(
                    format!("the file of `ca`, {}, {why}", path.display()),
                    "set `ca` to the path of a PEM file with the certificate of your certificate \
                     authority",
                )
            };
            let text =
                std::fs::read(path).map_err(|error| unusable("cannot be read").source(error))?;
            let certificates = CertificateDer::pem_slice_iter(&text)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| unusable("is not PEM").source(error))?;
            if certificates.is_empty() {
                return Err(unusable("contains no certificate"));
            }
            RustlsConnectorConfig::default().with_parsable_certificates(certificates)
        }
    };
    let connector = trusted.connector_with_no_client_auth().map_err(|error| {
        invalid_setting(
            "TLS cannot be set up with these certificates",
            "check the file of `ca`, or the certificates of the operating system",
        )
        .source(error)
    })?;
    Ok(Some(Arc::new(connector)))
}
