use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::TIMEOUT;
use crate::redis::server::Redis;
use crate::resp::Reply;

/// A Redis Sentinel that monitors one primary with a quorum of 1.
///
/// It fails over when the primary has not replied for five seconds. Dropping it ends it.
#[derive(Debug)]
pub struct Sentinel {
    server: Redis,
    name: String,
}

impl Sentinel {
    /// Starts a Sentinel that monitors `primary` under `name`.
    ///
    /// When this returns, it knows the primary and its connected replicas. It discovers later
    /// replicas within ten seconds.
    pub fn start(primary: &Redis, name: &str) -> Self {
        let options = Redis::options().sentinel();
        let mut options = options
            .set("sentinel monitor", &format!("{name} 127.0.0.1 {} 1", primary.port()))
            .set("sentinel down-after-milliseconds", &format!("{name} 5000"))
            // Also the delay before it retries a failed failover.
            .set("sentinel failover-timeout", &format!("{name} 3000"));
        if let Some(password) = &primary.password {
            options = options.set("sentinel auth-pass", &format!("{name} {password}"));
        }
        let sentinel = Self { server: options.start(), name: name.to_owned() };
        sentinel.wait_until_discovered(primary);
        sentinel
    }

    /// Returns the monitored primary's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the Sentinel's own URL: `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Returns the Sentinel's `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.server.address()
    }

    /// Returns the Sentinel's port.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the current primary's port.
    pub fn primary_port(&self) -> u16 {
        let reply = self.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name]);
        let port = reply.list()[1].text();
        port.parse().unwrap_or_else(|_| panic!("{port} is not a port"))
    }

    /// Sends a command to the Sentinel; see [`Redis::command`].
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) -> Reply {
        self.server.command(arguments)
    }

    fn wait_until_discovered(&self, primary: &Redis) {
        let replication = primary.command(&["INFO", "replication"]).text();
        let replicas = replication.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
        let replicas = replicas.unwrap_or("0");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let seen = self.command(&["SENTINEL", "MASTER", &self.name]);
            let seen: HashMap<String, String> =
                seen.list().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
            if seen["flags"] == "master" && seen["num-slaves"] == replicas {
                return;
            }
            let log = self.server.log();
            assert!(
                Instant::now() < deadline,
                "the Sentinel has not discovered the servers: {seen:?}; log:\n{log}"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}
