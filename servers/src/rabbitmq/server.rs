//! A running RabbitMQ node.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::process::{Process, process_control};
use crate::rabbitmq::cluster_identity::ClusterIdentity;
use crate::tls;

/// An administrator. The servers listen on 127.0.0.1 only.
pub(super) const USER: &str = "dq";
pub(super) const PASSWORD: &str = "secret";

/// A private RabbitMQ node on a free port of 127.0.0.1, with its own directory, cookie and port
/// mapper daemon (epmd).
///
/// It ends, and its directory vanishes, when you drop it or when this process ends.
#[derive(Debug)]
pub struct RabbitMq {
    pub(super) process: Process,
    pub(super) identity: Arc<ClusterIdentity>,
    pub(super) node: String,
    /// Without TLS.
    pub(super) port: u16,
    pub(super) tls: Option<u16>,
    pub(super) management: Option<u16>,
}

impl RabbitMq {
    process_control!();

    /// Returns the URL with the default virtual host: `amqp://USER:PASSWORD@127.0.0.1:PORT/%2f`, or
    /// `amqps://` with [`RabbitOptions::tls`](crate::RabbitOptions::tls).
    pub fn url(&self) -> String {
        self.url_of("%2f")
    }

    /// Creates an empty virtual host and returns its URL. The name may have letters, digits, `-`
    /// and `_`.
    pub fn vhost(&self, name: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        assert!(
            name.bytes().all(plain) && !name.is_empty(),
            "{name:?} has other characters than letters, digits, - and _"
        );
        // Like `rabbitmqctl add_vhost` and `set_permissions`, but in one call.
        self.eval(&format!(
            "rabbit_vhost:add(<<\"{name}\">>, <<\"{USER}\">>), \
             rabbit_auth_backend_internal:set_permissions(<<\"{USER}\">>, <<\"{name}\">>, \
             <<\".*\">>, <<\".*\">>, <<\".*\">>, <<\"{USER}\">>)"
        ));
        self.url_of(name)
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Returns the port, which [`restart`](Self::restart) keeps.
    pub fn port(&self) -> u16 {
        self.tls.unwrap_or(self.port)
    }

    /// Returns the management API's URL, `http://USER:PASSWORD@127.0.0.1:PORT`. Requires
    /// [`RabbitOptions::management`](crate::RabbitOptions::management).
    pub fn management_url(&self) -> String {
        let port = self.management.expect("the server was started with `management`");
        format!("http://{USER}:{PASSWORD}@127.0.0.1:{port}")
    }

    /// Returns the CA certificate that clients must trust, as PEM. Requires
    /// [`RabbitOptions::tls`](crate::RabbitOptions::tls).
    pub fn ca(&self) -> PathBuf {
        self.identity.dir().join(tls::CA_CERTIFICATE)
    }

    /// Returns the node name, `NAME@localhost`.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the port of epmd, which runs even while the node is down.
    pub fn epmd_port(&self) -> u16 {
        self.identity.epmd
    }

    /// Restarts the server after [`kill`](Self::kill) or [`stop`](Self::stop), with its port and
    /// data, and waits until it is ready.
    ///
    /// If a cluster node starts while another declares a stream, it may find a record without a
    /// process and exit (seen with 3.10.8). It is then started again, as service managers do.
    pub fn restart(&self) {
        for attempt in 1..=3 {
            self.process.start();
            match self.wait_until_ready() {
                Ok(()) => return,
                Err(reason) if attempt == 3 || self.process.id().is_some() => {
                    panic!("RabbitMQ is not ready: {reason}")
                }
                Err(_) => {}
            }
        }
    }

    /// Waits until all declarations are on disk.
    ///
    /// The server replies earlier: a node killed in the next moments loses even durable queues.
    pub fn sync_declarations(&self) {
        self.eval("mnesia:sync_log()");
    }

    /// Returns the last warnings and errors of the log, to print after a failed test. Leaves out
    /// clients that closed a connection without a word, as dropped ones do.
    pub fn complaints(&self) -> String {
        const LINES: usize = 200;
        let log = self.log();
        let about_drops = |line: &str| {
            line.contains("client unexpectedly closed") || line.ends_with("user: 'dq'):")
        };
        let complaint = |line: &&str| {
            (line.contains("[error]") || line.contains("[warning]")) && !about_drops(line)
        };
        let lines: Vec<&str> = log.lines().filter(complaint).collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    fn url_of(&self, vhost: &str) -> String {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        format!("{scheme}://{USER}:{PASSWORD}@{}/{vhost}", self.address())
    }

    /// The error has the reason and the log.
    pub(super) fn wait_until_ready(&self) -> Result<(), String> {
        let name = self.identity.name.as_bytes();
        self.process.wait_until_ready(|| {
            let frame = first_frame(self.port)
                .map_err(|error| format!("it did not reply on port {} ({error})", self.port))?;
            if !frame.windows(name.len()).any(|part| part == name) {
                return Err(format!("another server replied on port {}", self.port));
            }
            // Newer versions open the ports one by one.
            let mut ports = self.tls.into_iter().chain(self.management);
            match ports.find(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err()) {
                Some(port) => Err(format!("it has not opened port {port}")),
                None => Ok(()),
            }
        })
    }
}

/// Reads the start of the AMQP 0-9-1 handshake: `connection.start`, which contains the cluster's
/// name. RabbitMQ opens this port last.
fn first_frame(port: u16) -> std::io::Result<Vec<u8>> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"AMQP\x00\x00\x09\x01")?;
    // Type (1 byte), channel (2), payload length (4).
    let mut frame_header = [0; 7];
    stream.read_exact(&mut frame_header)?;
    let [1, 0, 0, length @ ..] = frame_header else {
        return Err(Error::new(ErrorKind::InvalidData, "the server does not speak AMQP 0-9-1"));
    };
    // Far above the frame's size; another server on the port may send any length.
    let mut frame = vec![0; u32::from_be_bytes(length).min(1 << 16) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
