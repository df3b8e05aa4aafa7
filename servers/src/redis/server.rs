//! A running Redis server.

use std::path::PathBuf;

use crate::process::{Process, process_control};
use crate::resp::{Connection, Reply};
use crate::tls;

pub(super) const SOCKET: &str = "redis.sock";

/// A private Redis server on a free port of 127.0.0.1. Dropping it ends it and deletes its
/// directory.
#[derive(Debug)]
pub struct Redis {
    pub(super) process: Process,
    pub(super) port: u16,
    pub(super) password: Option<String>,
    pub(super) url: String,
}

impl Redis {
    process_control!();

    /// Returns the URL, with any password: `redis://127.0.0.1:PORT/0`, or `rediss://…` with TLS.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the port, which [`restart`](Self::restart) keeps.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir().join(SOCKET)
    }

    /// Returns the CA certificate that clients must trust. Requires
    /// [`RedisOptions::tls`](crate::RedisOptions::tls).
    pub fn ca(&self) -> PathBuf {
        self.dir().join(tls::CA_CERTIFICATE)
    }

    /// Restarts the server after [`kill`](Self::kill) or [`stop`](Self::stop), with its port and
    /// data, and waits until it is ready.
    pub fn restart(&self) {
        self.process.start();
        if let Err(reason) = self.wait_until_ready() {
            panic!("redis-server does not restart: {reason}");
        }
    }

    /// Sends a command on a new connection. Panics after 300 s.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> Reply {
        self.connect().command(arguments)
    }

    /// Like [`command`](Self::command), for binary arguments.
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

    /// The error has the reason and the log.
    pub(super) fn wait_until_ready(&self) -> Result<(), String> {
        self.process.wait_until_ready(|| {
            // No other server can reply on the socket. It opens after the port.
            let reply = Connection::open(&self.socket(), self.password.as_deref())
                .and_then(|mut connection| connection.request(&[b"PING"]));
            match reply {
                Ok(Reply::Text(text)) if text == b"PONG" => Ok(()),
                reply => Err(format!("it replied {reply:?} to PING")),
            }
        })
    }
}
