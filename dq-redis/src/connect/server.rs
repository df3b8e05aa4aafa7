//! The server or servers, and how a connection to them is made.

use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Error, ErrorKind, Result};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    TlsCertificates, TlsMode,
};
use tokio::sync::Mutex;

use super::address::{Address, Topology};
use super::url;
use crate::error;

/// What the three backends have in common about their server.
#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) url: Secret,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) response_timeout: Duration,
}

/// Time for a connection to be made. Not a setting: a server that does not answer in this time is
/// asked again.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// What a server is given to answer.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// The server, the cluster, or the sentinels that know the server.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) response_timeout: Duration,
    certificates: Option<TlsCertificates>,
    place: Place,
}

enum Place {
    Single(Client),
    Cluster(ClusterClient),
    Sentinel(Mutex<SentinelClient>),
}

/// A client of one server, or of a cluster.
// One at a time, and only while a connection is made.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Target<'a> {
    One(Client),
    Cluster(&'a ClusterClient),
}

impl Server {
    /// Reads the settings; connects to nothing.
    pub(crate) fn new(settings: &ServerSettings) -> Result<Self> {
        let url = url::read(&settings.url)?;
        patient(settings.response_timeout)?;
        let mut address = Address::parse(url.scheme(), url.address())?;
        address.tls |= url.options().iter().any(|(name, value)| name == "tls" && value == "true");
        if address.tls {
            // Whoever set another provider for the whole process keeps it.
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let certificates = certificates(settings, address.tls)?;
        let failed = |error| error::of_settings(&error);
        let place = match &address.topology {
            Topology::Single | Topology::Unix(_) => {
                Place::Single(single(&address, certificates.clone()).map_err(failed)?)
            }
            Topology::Cluster => Place::Cluster(
                cluster(&address, certificates.clone(), settings.response_timeout)
                    .map_err(failed)?,
            ),
            Topology::Sentinel(primary) => {
                let sentinels =
                    sentinel(&address, primary, certificates.clone()).map_err(failed)?;
                Place::Sentinel(Mutex::new(sentinels))
            }
        };
        Ok(Self { address, response_timeout: settings.response_timeout, certificates, place })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    /// Who is to be connected to now; sentinels are asked each time.
    pub(crate) async fn target(&self) -> redis::RedisResult<Target<'_>> {
        match &self.place {
            Place::Single(client) => Ok(Target::One(client.clone())),
            Place::Cluster(client) => Ok(Target::Cluster(client)),
            Place::Sentinel(sentinels) => {
                Ok(Target::One(sentinels.lock().await.async_get_client().await?))
            }
        }
    }

    /// A client of one server that passes messages on: any node of a cluster does.
    pub(crate) async fn messenger(&self) -> redis::RedisResult<Vec<Client>> {
        match self.target().await? {
            Target::One(client) => Ok(vec![client]),
            Target::Cluster(_) => {
                self.address.hosts.iter().map(|(host, port)| self.node(host, *port)).collect()
            }
        }
    }

    /// A client of one node of a cluster.
    pub(crate) fn node(&self, host: &str, port: u16) -> redis::RedisResult<Client> {
        let mut address = self.address.clone();
        address.hosts = vec![(host.to_owned(), port)];
        single(&address, self.certificates.clone())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address.shown()).finish_non_exhaustive()
    }
}

/// Refuses times in which no server answers, and those that no clock counts to.
fn patient(response_timeout: Duration) -> Result<()> {
    if (SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&response_timeout) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        format!("the field `response_timeout` is {response_timeout:?}"),
    )
    .remedy("give the server between 10ms and 1 day to answer; it has 5s unless this is set")
    .operation("connect"))
}

fn certificates(settings: &ServerSettings, tls: bool) -> Result<Option<TlsCertificates>> {
    let Some(path) = &settings.ca else {
        return Ok(None);
    };
    if !tls {
        return Err(Error::new(
            ErrorKind::Config,
            "`ca` is given, but the URL does not ask for TLS",
        )
        .remedy("begin the URL with rediss://, or add ?tls=true")
        .operation("connect"));
    }
    let root_cert = std::fs::read(path).map_err(|error| {
        Error::new(
            ErrorKind::Config,
            format!("the file of `ca`, {}, cannot be read", path.display()),
        )
        .remedy("give the path of a PEM file with the certificate of your authority")
        .operation("connect")
        .source(error)
    })?;
    Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(root_cert) }))
}

fn tcp(address: &Address, host: &str, port: u16) -> ConnectionAddr {
    if address.tls {
        ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host.to_owned(), port)
    }
}

fn info(address: &Address, place: ConnectionAddr) -> ConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_db(address.database);
    if let Some(user) = &address.user {
        login = login.set_username(user);
    }
    if let Some(password) = &address.password {
        login = login.set_password(password);
    }
    place
        .into_connection_info()
        .expect("an address is one already")
        .set_redis_settings(login)
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

fn single(address: &Address, certificates: Option<TlsCertificates>) -> redis::RedisResult<Client> {
    let place = match &address.topology {
        Topology::Unix(path) => ConnectionAddr::Unix(path.into()),
        _ => {
            let (host, port) = &address.hosts[0];
            tcp(address, host, *port)
        }
    };
    let info = info(address, place);
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates),
        None => Client::open(info),
    }
}

fn cluster(
    address: &Address,
    certificates: Option<TlsCertificates>,
    response_timeout: Duration,
) -> redis::RedisResult<ClusterClient> {
    let nodes = address.hosts.iter().map(|(host, port)| info(address, tcp(address, host, *port)));
    let mut builder = ClusterClientBuilder::new(nodes)
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(response_timeout)
        .overall_response_timeout(Some(response_timeout))
        // It would also send again what lost its answer; see `Link`.
        .retries(0)
        .tcp_settings(TcpSettings::default().set_nodelay(true));
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates);
    }
    builder.build()
}

fn sentinel(
    address: &Address,
    primary: &str,
    certificates: Option<TlsCertificates>,
) -> redis::RedisResult<SentinelClient> {
    let sentinels = address.hosts.iter().map(|(host, port)| tcp(address, host, *port));
    let mut builder = SentinelClientBuilder::new(sentinels, primary, SentinelServerType::Master)?
        .set_client_to_redis_db(address.database)
        .set_client_to_redis_tcp_settings(TcpSettings::default().set_nodelay(true));
    if let Some(user) = &address.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &address.password {
        builder = builder.set_client_to_redis_password(password);
    }
    if address.tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
    }
    builder.build()
}
