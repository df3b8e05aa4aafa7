//! A cluster's shared name, Erlang cookie, certificates and port mapper daemon (epmd), all private:
//! neither the machine's epmd on port 4369 nor the user's cookie is used.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;

use crate::port;
use crate::process::{Process, start_on_free_port};
use crate::rabbitmq::installation::Installation;
use crate::watchdog::Watchdog;

#[derive(Debug)]
pub(super) struct ClusterIdentity {
    pub(super) installation: Installation,
    /// A handshake shows this unique name, so that we recognize our server on a port.
    pub(super) name: String,
    pub(super) cookie: String,
    pub(super) epmd: u16,
    daemon: Process,
}

impl ClusterIdentity {
    pub(super) fn start() -> Self {
        let installation = Installation::find();
        let (epmd, daemon) = start_on_free_port("epmd", || start_epmd(&installation));
        let installation = installation
            .with_few_plugins(daemon.dir().join("plugins"))
            .unwrap_or_else(|error| panic!("RabbitMQ's plugins cannot be linked: {error}"));
        let random = RandomState::new();
        let name = format!("dq-{:08x}", random.hash_one("name") as u32);
        let cookie = format!("{:016x}", random.hash_one("cookie"));
        Self { installation, name, cookie, epmd, daemon }
    }

    /// The name of the node with this number, from 1.
    pub(super) fn node(&self, number: usize) -> String {
        format!("rabbit{number}-{}@localhost", self.name)
    }

    /// Lives as long as the cluster.
    pub(super) fn dir(&self) -> &Path {
        self.daemon.dir()
    }
}

/// Runs epmd in the foreground, on 127.0.0.1 only.
fn start_epmd(installation: &Installation) -> Result<(u16, Process), String> {
    let port = port::free();
    let arguments =
        ["-address".into(), "127.0.0.1".into(), "-port".into(), port.to_string().into()];
    let watchdog = Watchdog::start("dq-epmd-");
    let process =
        Process::new(watchdog, installation.program("epmd", Vec::new()), arguments.into());
    process.start();
    process
        .wait_until_ready(|| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .map(drop)
                .map_err(|error| error.to_string())
        })
        .map_err(|reason| format!("{reason} (epmd is silent if its port is already in use)"))?;
    Ok((port, process))
}
