//! Private Redis servers.

mod cluster;
mod options;
mod sentinel;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

pub use cluster::RedisCluster;
pub use options::RedisOptions;
pub use sentinel::Sentinel;

use crate::process::{PATIENCE, Process};
use crate::resp::{Connection, Reply};
use crate::tls;

/// One private Redis server at a free port of 127.0.0.1, with a directory of its own.
///
/// Dropping it ends the server and removes the directory. So does the end of the process, whatever
/// ends it.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    password: Option<String>,
    url: String,
}

impl Redis {
    /// A server that keeps nothing on disk, ready to answer.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// A server with settings.
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    /// What a client connects to, with the password if there is one: `redis://127.0.0.1:PORT/0`.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port, which stays the same over [`restart`](Self::restart).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's own directory, with its data and its `log`.
    pub fn dir(&self) -> &Path {
        self.process.dir()
    }

    /// The Unix socket, at which every server listens too.
    pub fn socket(&self) -> PathBuf {
        self.dir().join(options::SOCKET)
    }

    /// With [`RedisOptions::tls`]: the certificate of the authority that clients must trust, as PEM.
    pub fn ca(&self) -> PathBuf {
        self.dir().join(tls::AUTHORITY)
    }

    /// The id of the server's process, or nothing after [`kill`](Self::kill) or
    /// [`stop`](Self::stop).
    pub fn process_id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Ends the server like a crash: SIGKILL.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Ends the server in the orderly way: SIGTERM.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Starts the server again after [`kill`](Self::kill) or [`stop`](Self::stop), at the same port
    /// and with what is on disk. It is ready to answer when this returns.
    pub fn restart(&self) {
        self.process.start();
        if let Err(reason) = self.until_ready() {
            panic!("redis-server does not start again: {reason}");
        }
    }

    /// Stops the server's process in the midst of what it does (SIGSTOP): connections stay open,
    /// and nobody answers.
    pub fn freeze(&self) {
        self.process.signal("STOP");
    }

    /// Lets a frozen server go on (SIGCONT).
    pub fn thaw(&self) {
        self.process.signal("CONT");
    }

    /// Sends a command on a connection of its own and returns the answer, be it a refusal. Panics
    /// if there is none within 30 s.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Reply {
        self.connect().command(words)
    }

    /// As [`command`](Self::command), for what is not text.
    #[track_caller]
    pub fn command_bytes(&self, words: &[&[u8]]) -> Reply {
        self.connect().command_bytes(words)
    }

    /// A connection for several commands.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::open(&self.socket(), self.password.as_deref())
            .unwrap_or_else(|error| panic!("Redis does not answer: {error}"))
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Waits until the server answers. The error is the reason with the log.
    fn until_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let pong = Reply::Text(b"PONG".to_vec());
        loop {
            // By the socket, where nobody else's server can answer; the port is open before it.
            let answer = Connection::open(&self.socket(), self.password.as_deref())
                .and_then(|mut connection| connection.ask(&[b"PING"]));
            if answer.as_ref().is_ok_and(|reply| *reply == pong) {
                return Ok(());
            }
            if let Some(status) = self.process.ended() {
                self.process.kill();
                return Err(format!("it ended ({status}) with the log:\n{}", self.log()));
            }
            if Instant::now() > deadline {
                return Err(format!("answered {answer:?} after 30 s; log:\n{}", self.log()));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// One server for all tests of this process, for those that keep to keys of their own. It is
/// started at first use and ends with the process.
pub fn shared_redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}
