//! The server, cluster or Sentinels of a URL, and their clients.

use std::path::PathBuf;
use std::time::Duration;

use dq_core::Result;
use dq_core::config::{Secret, check_response_timeout, invalid_setting};
use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, TlsCertificates,
};

use super::address::{Address, Topology};
use super::url;
use crate::error::{self, Origin};

#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) url: Secret,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) response_timeout: Duration,
}

/// The minimum for one attempt to connect. Not a setting, because failed attempts are repeated.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Server {
    pub(crate) address: Address,
    /// At least half the response timeout, because a slow server may be slow to accept connections.
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    certificates: Option<TlsCertificates>,
    clients: Clients,
}

enum Clients {
    Fixed(ServerClient),
    /// The primary's name, and its Sentinels.
    Sentinel(String, Vec<Client>),
}

#[derive(Clone)]
pub(crate) enum ServerClient {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
}

impl Server {
    /// Errors: `Config` naming the setting, or the part of the URL.
    pub(crate) fn new(settings: &ServerSettings) -> Result<Self> {
        let url = url::read(&settings.url)?;
        check_response_timeout(settings.response_timeout)?;
        let mut address = Address::parse(url.scheme(), url.address())?;
        address.tls |= url.options().iter().any(|(name, value)| name == "tls" && value == "true");
        if address.tls {
            // An error means that the application has chosen another provider.
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let certificates = certificates(settings, address.tls)?;
        let response_timeout = settings.response_timeout;
        let connect_timeout = CONNECT_TIMEOUT.max(response_timeout / 2);
        let failed = |error| error::invalid_url(&error);
        let clients = match &address.topology {
            Topology::Single | Topology::Unix(_) => {
                let client = single(&address, certificates.clone()).map_err(failed)?;
                Clients::Fixed(ServerClient::Single(Box::new(client)))
            }
            Topology::Cluster => {
                let client =
                    cluster(&address, certificates.clone(), connect_timeout, response_timeout);
                Clients::Fixed(ServerClient::Cluster(Box::new(client.map_err(failed)?)))
            }
            Topology::Sentinel(primary) => {
                let sentinels = sentinels(&address, certificates.as_ref()).map_err(failed)?;
                Clients::Sentinel(primary.clone(), sentinels)
            }
        };
        Ok(Self { address, connect_timeout, response_timeout, certificates, clients })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.address.is_cluster()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.address.origin()
    }

    /// Asks Sentinels for the primary each time.
    pub(crate) async fn client(&self) -> redis::RedisResult<ServerClient> {
        match &self.clients {
            Clients::Fixed(client) => Ok(client.clone()),
            Clients::Sentinel(name, sentinels) => {
                // All at once, so that a silent Sentinel delays none of the others.
                let limit = self.connect_timeout;
                let asked = sentinels.iter().map(|sentinel| primary(sentinel, name, limit).boxed());
                let ((host, port), _) = select_ok(asked).await?;
                Ok(ServerClient::Single(Box::new(self.node(&host, port)?)))
            }
        }
    }

    /// In the order to try. In a cluster every node delivers all messages.
    pub(crate) async fn pubsub_clients(&self) -> redis::RedisResult<Vec<Client>> {
        match self.client().await? {
            ServerClient::Single(client) => Ok(vec![*client]),
            ServerClient::Cluster(_) => {
                self.address.hosts.iter().map(|(host, port)| self.node(host, *port)).collect()
            }
        }
    }

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

fn certificates(settings: &ServerSettings, tls: bool) -> Result<Option<TlsCertificates>> {
    let Some(path) = &settings.ca else {
        return Ok(None);
    };
    if !tls {
        return Err(invalid_setting(
            "`ca` is set, but the URL does not ask for TLS",
            "begin the URL with rediss://, or add ?tls=true",
        ));
    }
    let root_cert = std::fs::read(path).map_err(|error| {
        invalid_setting(
            format!("the file of `ca`, {}, cannot be read", path.display()),
            "set it to the path of a PEM file with the certificate of your authority",
        )
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

fn connection_info(address: &Address, server: ConnectionAddr) -> ConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_db(address.database);
    if let Some(user) = &address.user {
        login = login.set_username(user);
    }
    if let Some(password) = &address.password {
        login = login.set_password(password);
    }
    server
        .into_connection_info()
        .expect("a parsed address needs no parsing")
        .set_redis_settings(login)
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

fn single(address: &Address, certificates: Option<TlsCertificates>) -> redis::RedisResult<Client> {
    let server = match &address.topology {
        Topology::Unix(path) => ConnectionAddr::Unix(path.into()),
        _ => {
            let (host, port) = &address.hosts[0];
            tcp(address, host, *port)
        }
    };
    let info = connection_info(address, server);
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates),
        None => Client::open(info),
    }
}

fn cluster(
    address: &Address,
    certificates: Option<TlsCertificates>,
    connect_timeout: Duration,
    response_timeout: Duration,
) -> redis::RedisResult<ClusterClient> {
    let nodes = address
        .hosts
        .iter()
        .map(|(host, port)| connection_info(address, tcp(address, host, *port)));
    let mut builder = ClusterClientBuilder::new(nodes)
        .connection_timeout(connect_timeout)
        .response_timeout(response_timeout)
        .overall_response_timeout(Some(response_timeout))
        // The client library would also repeat commands with lost replies; `Link` retries instead.
        .retries(0)
        .tcp_settings(TcpSettings::default().set_nodelay(true));
    if let Some(certificates) = certificates {
        builder = builder.certs(certificates);
    }
    builder.build()
}

/// The servers' user does not log in at Sentinels.
fn sentinels(
    address: &Address,
    certificates: Option<&TlsCertificates>,
) -> redis::RedisResult<Vec<Client>> {
    let clients = address.hosts.iter().map(|host| {
        let sentinel = Address {
            hosts: vec![host.clone()],
            user: None,
            password: None,
            database: 0,
            ..address.clone()
        };
        single(&sentinel, certificates.cloned())
    });
    clients.collect()
}

pub(crate) async fn connect(
    client: &Client,
    connect_timeout: Duration,
    response_timeout: Duration,
) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_timeout))
        .set_response_timeout(Some(response_timeout));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Asks a Sentinel for the primary. The client library's own search also asks the primary for its
/// role, by commands that a restricted user may not run. Here a server that has become a replica
/// refuses the first write; the Sentinels are then asked again.
async fn primary(
    sentinel: &Client,
    name: &str,
    limit: Duration,
) -> redis::RedisResult<(String, u16)> {
    let mut connection = connect(sentinel, limit, limit).await?;
    let mut get = redis::cmd("SENTINEL");
    get.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let address: Option<(String, u16)> = get.query_async(&mut connection).await?;
    address.ok_or_else(|| {
        let kind = redis::ErrorKind::MasterNameNotFoundBySentinel;
        (kind, "a Sentinel knows no primary with this name").into()
    })
}
