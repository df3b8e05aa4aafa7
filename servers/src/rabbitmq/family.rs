//! What the nodes of one cluster share, be it a cluster of one: a name, a secret, certificates, and
//! the daemon that knows their ports. All of it is private: the machine's daemon at port 4369 and the cookie
//! in the user's home are left alone.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::port;
use crate::process::{PATIENCE, Process};
use crate::rabbitmq::Installation;
use crate::watchdog::Watchdog;

/// How often a lost race for a port is run again.
const ATTEMPTS: usize = 10;

#[derive(Debug)]
pub(super) struct Family {
    pub(super) installation: Installation,
    /// Nobody else's, so it tells our servers from those of others at the same port.
    pub(super) name: String,
    /// By which the nodes and their tools trust each other.
    pub(super) cookie: String,
    /// Where the daemon is.
    pub(super) epmd: u16,
    daemon: Process,
}

impl Family {
    pub(super) fn start() -> Self {
        let installation = Installation::expect();
        let (epmd, daemon) = (0..ATTEMPTS)
            .find_map(|_| epmd(&installation))
            .unwrap_or_else(|| panic!("epmd does not start at {ATTEMPTS} different ports"));
        let random = RandomState::new();
        let name = format!("dq-{:08x}", random.hash_one("name") as u32);
        let cookie = format!("{:016x}", random.hash_one("cookie"));
        Self { installation, name, cookie, epmd, daemon }
    }

    /// The full name of a node.
    pub(super) fn node(&self, number: usize) -> String {
        format!("rabbit{number}-{}@localhost", self.name)
    }

    /// A directory that is there as long as the family.
    pub(super) fn dir(&self) -> &Path {
        self.daemon.dir()
    }
}

/// A daemon in the foreground, at 127.0.0.1 only. Nothing if it has lost the race for its port.
fn epmd(installation: &Installation) -> Option<(u16, Process)> {
    let port = port::free();
    let arguments =
        ["-address".into(), "127.0.0.1".into(), "-port".into(), port.to_string().into()];
    let watchdog = Watchdog::start("dq-epmd-");
    let process = Process::new(watchdog, installation.epmd(), arguments.into());
    process.start();
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if process.ended().is_some() {
            return None;
        }
        assert!(Instant::now() < deadline, "epmd does not answer; log:\n{}", process.log());
        thread::sleep(Duration::from_millis(5));
    }
    Some((port, process))
}
