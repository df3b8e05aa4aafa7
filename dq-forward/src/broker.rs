//! Connections to an AMQP 0-9-1 broker.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::config::{Secret, authority};
use dq_core::{BoxError, Result};
use lapin::options::BasicPublishOptions;
use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::types::ShortString;
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri};
use lapin::{
    AsyncTcpStream, BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
};
use tokio::net::lookup_host;

use crate::error::invalid_setting;
use crate::{ca, tls};

/// Time limit for connecting, and for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The delivery mode of messages that the broker keeps on disk.
pub(crate) const PERSISTENT: u8 = 2;
/// After twice this time without data from the broker, the connection counts as lost.
const HEARTBEAT_SECONDS: u16 = 10;
/// How often a call checks that its connection is still open.
const STATUS_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) struct Broker {
    uri: AMQPUri,
    tls: Option<Arc<RustlsConnector>>,
}

impl Broker {
    /// Checks the URL and reads the certificates without connecting; `Config` if either fails.
    pub(crate) fn new(url: &Secret, ca: Option<&Path>) -> Result<Self> {
        let mut uri: AMQPUri = url.expose().parse().map_err(|_| {
            invalid_setting(
                "`url` is not the URL of an AMQP broker",
                "write it like amqp://user:password@host:5672/vhost",
            )
        })?;
        if let Some(address) = ipv6_host(url.expose()) {
            uri.authority.host = address.to_string();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        let tls = tls_connector(ca, &uri.scheme)?;
        Ok(Self { uri, tls })
    }

    /// Host, port and virtual host, without the password.
    pub(crate) fn address(&self) -> String {
        let AMQPAuthority { host, port, .. } = &self.uri.authority;
        format!("{}/{}", authority(host, *port), self.uri.vhost)
    }

    /// Connects. `purpose` becomes part of the connection name, which the broker shows.
    pub(crate) async fn connect(&self, purpose: &str) -> Result<Link, BoxError> {
        let name = format!("dq {purpose} (process {})", std::process::id());
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = lapin::runtime::default_runtime()?;
        let tls = self.tls.clone();
        let connecting = Connection::connector(
            self.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let AMQPAuthority { host, port, .. } = &uri.authority;
                let addresses: Vec<SocketAddr> = lookup_host((&**host, *port)).await?.collect();
                let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                Ok(match &tls {
                    Some(tls) => stream.into_rustls(tls, host).await?,
                    None => stream,
                })
            },
            properties,
        );
        // Boxed because lapin's futures are large.
        let connected = tokio::time::timeout(TIMEOUT, Box::pin(connecting)).await;
        let connection =
            connected.map_err(|_| format!("the broker did not answer within {TIMEOUT:?}"))??;
        Ok(Link { connection, is_abandoned: AtomicBool::new(false) })
    }
}

/// Trusts the certificates in `ca`, or the system's without it; `None` without TLS.
fn tls_connector(ca: Option<&Path>, scheme: &AMQPScheme) -> Result<Option<Arc<RustlsConnector>>> {
    if *scheme == AMQPScheme::AMQP {
        return match ca {
            None => Ok(None),
            Some(_) => Err(ca::without_tls("amqps")),
        };
    }
    tls::install_provider();
    let trusted = match ca {
        None => RustlsConnectorConfig::new_with_native_certs().map_err(|error| {
            invalid_setting(
                format!("the certificates of the operating system cannot be read: {error}"),
                ca::REMEDY,
            )
        })?,
        Some(ca) => {
            RustlsConnectorConfig::default().with_parsable_certificates(ca::certificates(ca)?)
        }
    };
    let connector = trusted.connector_with_no_client_auth().map_err(|error| {
        invalid_setting(
            format!("TLS cannot be used: {error}"),
            "correct the certificates in the file of `ca`, or the operating system's",
        )
    })?;
    Ok(Some(Arc::new(connector)))
}

/// Checks a setting that AMQP sends as a short string; `Config` if it is too long.
pub(crate) fn short_setting(name: &str, value: String) -> Result<ShortString> {
    ShortString::try_new(value)
        .map_err(|_| invalid_setting(format!("`{name}` is longer than 255 bytes"), "shorten it"))
}

/// Finds an IPv6 host in a URL. lapin ignores such a host and connects to localhost.
fn ipv6_host(url: &str) -> Option<Ipv6Addr> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    host.strip_prefix('[')?.split(']').next()?.parse().ok()
}

pub(crate) struct Link {
    connection: Connection,
    /// Set after the broker left a call unanswered.
    is_abandoned: AtomicBool,
}

impl Link {
    pub(crate) fn is_open(&self) -> bool {
        !self.is_abandoned.load(Ordering::Relaxed) && self.connection.status().connected()
    }

    /// Opens a channel. Call this within [`Link::answer`].
    pub(crate) async fn channel(&self) -> lapin::Result<Channel> {
        self.connection.create_channel().await
    }

    /// Waits up to `limit` for the answer to a call.
    ///
    /// lapin does not end every call when its connection ends, so this also watches the connection.
    /// After an unanswered call, the connection is not reused, and all other calls on it fail.
    pub(crate) async fn answer<T, E: Into<BoxError>>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BoxError> {
        tokio::select! {
            biased;
            answer = call => answer.map_err(Into::into),
            () = self.lost() => {
                Err("the connection to the broker has ended, or did not answer another call".into())
            }
            () = tokio::time::sleep(limit) => {
                self.is_abandoned.store(true, Ordering::Relaxed);
                Err(format!("the broker did not answer within {limit:?}").into())
            }
        }
    }

    /// Completes when the connection has ended or left a call unanswered.
    pub(crate) async fn lost(&self) {
        while self.is_open() {
            tokio::time::sleep(STATUS_INTERVAL).await;
        }
    }

    /// Closes the connection; unacknowledged messages return to their queues.
    pub(crate) async fn close(&self) {
        let closed = self.connection.close(200, ShortString::default());
        // A closing connection counts as lost, so this waits one status interval at most. lapin
        // finishes the close.
        let _ = self.answer(TIMEOUT, closed).await;
    }
}

/// Publishes a message and waits until a queue has it.
///
/// The channel must be in confirm mode and have no other message in flight, because lapin cannot
/// tell which of several messages was returned.
///
/// # Errors
/// The outer error means that the channel is unusable; the inner one, that the broker answered
/// without taking the message.
pub(crate) async fn publish(
    channel: &Channel,
    exchange: &ShortString,
    routing_key: &ShortString,
    body: &[u8],
    properties: BasicProperties,
) -> lapin::Result<Result<(), BoxError>> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirmation = channel
        .basic_publish(exchange.clone(), routing_key.clone(), options, body, properties)
        .await?
        .await?;
    Ok(match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(returned)) => Err(format!(
            "the broker has returned the message: {} ({})",
            returned.reply_text, returned.reply_code
        )
        .into()),
        Confirmation::Nack(_) => Err("the broker has refused the message".into()),
        Confirmation::NotRequested => Err("the broker does not confirm messages".into()),
    })
}

#[cfg(test)]
mod tests {
    use dq_servers::RabbitMq;

    use super::*;

    #[test]
    fn the_host_of_a_url_is_the_one_that_is_connected_to() {
        for (url, host, shown) in [
            ("amqp://u:p@[fd00::5]/v", "fd00::5", "[fd00::5]:5672/v"),
            ("amqps://[::1]:7?heartbeat=5", "::1", "[::1]:7//"),
            ("amqp://10.0.0.1", "10.0.0.1", "10.0.0.1:5672//"),
            ("amqp://u:[x]@rabbit:1/v", "rabbit", "rabbit:1/v"),
        ] {
            let broker = Broker::new(&Secret::new(url), None).unwrap();
            assert_eq!(broker.uri.authority.host, host);
            assert_eq!(broker.address(), shown);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_without_an_answer_ends_with_its_connection() {
        let server = tokio::task::spawn_blocking(RabbitMq::start).await.unwrap();
        let broker = Broker::new(&Secret::new(server.url()), None).unwrap();
        let abandoned = broker.connect("test").await.unwrap();
        let never = std::future::pending::<Result<(), BoxError>>;
        let error = abandoned.answer(Duration::from_millis(1), never()).await.unwrap_err();
        assert!(error.to_string().contains("did not answer within 1ms"), "{error}");
        assert!(!abandoned.is_open(), "it is not used again");

        let link = broker.connect("test").await.unwrap();
        assert!(link.is_open());
        let hour = Duration::from_secs(3_600);
        let call = link.answer(hour, never());
        let kill = async { tokio::task::block_in_place(|| server.kill()) };
        let ended = async { tokio::join!(call, kill).0 };
        let ended = tokio::time::timeout(Duration::from_secs(180), ended).await;
        let error = ended.expect("the call ends within three minutes").unwrap_err();
        assert!(error.to_string().contains("the connection to the broker has ended"), "{error}");
    }
}
