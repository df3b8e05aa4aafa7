//! One private Redis server.

use std::path::PathBuf;

use crate::process::{Process, TIMEOUT, process_control};
use crate::resp::{Connection, Reply};
use crate::tls;

/// The Unix socket in a server's directory.
pub(super) const SOCKET: &str = "redis.sock";

/// A private Redis server on a free port of 127.0.0.1, with its own directory.
///
/// Dropping it stops the server and removes the directory. The same happens when this process ends,
/// however it ends.
#[derive(Debug)]
pub struct Redis {
    pub(super) process: Process,
    pub(super) port: u16,
    pub(super) password: Option<String>,
    pub(super) url: String,
}

impl Redis {
    process_control!();

    /// The URL for clients, with the password if there is one: `redis://127.0.0.1:PORT/0`,
    /// `rediss://…` with TLS, or `redis+unix://…` with a socket.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port, which [`restart`](Self::restart) does not change.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The Unix socket on which every server also listens.
    pub fn socket(&self) -> PathBuf {
        self.dir().join(SOCKET)
    }

    /// With [`RedisOptions::tls`](crate::RedisOptions::tls): the CA certificate that clients must
    /// trust, as PEM.
    pub fn ca(&self) -> PathBuf {
        self.dir().join(tls::CA_CERTIFICATE)
    }

    /// Starts the server again after [`kill`](Self::kill) or [`stop`](Self::stop), on the same port
    /// and with the data on its disk. Returns when it is ready.
    pub fn restart(&self) {
        self.process.start();
        if let Err(reason) = self.wait_until_ready() {
            panic!("redis-server does not restart: {reason}");
        }
    }

    /// Sends a command on a new connection and returns the reply, which may be an error. Panics if
    /// there is none within 120 s.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> Reply {
        self.connect().command(arguments)
    }

    /// Like [`command`](Self::command), for arguments that are not text.
    #[track_caller]
    pub fn command_bytes(&self, arguments: &[&[u8]]) -> Reply {
        self.connect().command_bytes(arguments)
    }

    /// Opens a connection for several commands.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::open(&self.socket(), self.password.as_deref())
            .unwrap_or_else(|error| panic!("Redis does not reply: {error}"))
    }

    /// Waits until the server replies. The error is the reason, with the log.
    pub(super) fn wait_until_ready(&self) -> Result<(), String> {
        self.process.wait_until_ready(TIMEOUT, || {
            // On the socket, where no other server can reply. It is opened after the port.
            let reply = Connection::open(&self.socket(), self.password.as_deref())
                .and_then(|mut connection| connection.request(&[b"PING"]));
            match reply {
                Ok(Reply::Text(text)) if text == b"PONG" => Ok(()),
                reply => Err(format!("it replied {reply:?} to PING")),
            }
        })
    }
}
