//! Redis Sentinel.

use std::collections::HashMap;

use crate::process::retry;
use crate::redis::server::Redis;
use crate::resp::Reply;

/// A Redis Sentinel for one primary, with a quorum of 1. It fails over when the primary has not
/// replied for five seconds.
#[derive(Debug)]
pub struct Sentinel {
    server: Redis,
    name: String,
}

impl Sentinel {
    /// Starts a Sentinel that monitors `primary` under `name`. It knows the primary and its
    /// connected replicas, and discovers later replicas within ten seconds.
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

    /// Returns the Sentinel's `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.server.address()
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
        retry(|| {
            let seen = self.command(&["SENTINEL", "MASTER", &self.name]);
            let seen: HashMap<String, String> =
                seen.list().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
            if seen["flags"] == "master" && seen["num-slaves"] == replicas {
                return Ok(());
            }
            let log = self.server.log();
            Err(format!("the Sentinel has not discovered the servers: {seen:?}; log:\n{log}"))
        });
    }
}
