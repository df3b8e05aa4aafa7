//! What the nodes of a cluster (or a single node) share: a name, the Erlang cookie, certificates,
//! and the port mapper daemon (epmd). All of it is private: the machine's epmd on port 4369 and the
//! cookie in the user's home directory are not used.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::port;
use crate::process::{Process, TIMEOUT};
use crate::rabbitmq::installation::Installation;
use crate::watchdog::Watchdog;

/// Maximum number of attempts to start epmd, each on another port, if another process takes the
/// port first.
const ATTEMPTS: usize = 10;

/// Shared name, cookie and epmd of a cluster's nodes.
#[derive(Debug)]
pub(super) struct ClusterIdentity {
    pub(super) installation: Installation,
    /// Unique name of the cluster, by which a handshake shows that a server on a port belongs to
    /// it.
    pub(super) name: String,
    /// The Erlang cookie: the shared secret of nodes and tools.
    pub(super) cookie: String,
    /// Port of epmd.
    pub(super) epmd: u16,
    /// The process of epmd.
    daemon: Process,
}

impl ClusterIdentity {
    pub(super) fn start() -> Self {
        let installation = Installation::expect();
        let (epmd, daemon) = (0..ATTEMPTS)
            .find_map(|_| start_epmd(&installation))
            .unwrap_or_else(|| panic!("epmd does not start on {ATTEMPTS} different ports"));
        let random = RandomState::new();
        let name = format!("dq-{:08x}", random.hash_one("name") as u32);
        let cookie = format!("{:016x}", random.hash_one("cookie"));
        Self { installation, name, cookie, epmd, daemon }
    }

    /// The full name of a node.
    pub(super) fn node(&self, number: usize) -> String {
        format!("rabbit{number}-{}@localhost", self.name)
    }

    /// A directory that exists as long as the cluster.
    pub(super) fn dir(&self) -> &Path {
        self.daemon.dir()
    }
}

/// Starts epmd in the foreground, on 127.0.0.1 only. `None` if another process took its port first.
fn start_epmd(installation: &Installation) -> Option<(u16, Process)> {
    let port = port::free();
    let arguments =
        ["-address".into(), "127.0.0.1".into(), "-port".into(), port.to_string().into()];
    let watchdog = Watchdog::start("dq-epmd-");
    let process = Process::new(watchdog, installation.epmd(), arguments.into());
    process.start();
    let deadline = Instant::now() + TIMEOUT;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if process.exit_status().is_some() {
            return None;
        }
        assert!(Instant::now() < deadline, "epmd does not reply; log:\n{}", process.log());
        thread::sleep(Duration::from_millis(5));
    }
    Some((port, process))
}
