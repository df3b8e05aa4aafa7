//! A Redis primary with a replica, watched by a Sentinel.

use dq_servers::{Redis, Sentinel};

use super::replication::{LIMIT, exchange, is_replica, number, primary_and_replica, wait_until};
use crate::run::Result;

/// The name by which the Sentinel knows the primary.
const NAME: &str = "dq";

#[derive(Debug)]
pub(crate) struct Watched {
    sentinel: Sentinel,
    /// Each of the two is the primary at times.
    servers: [Redis; 2],
}

impl Watched {
    pub(super) fn start() -> Self {
        let primary = Redis::options().aof().start();
        let replica = Redis::options().aof().replica_of(&primary).start();
        let sentinel = Sentinel::start(&primary, NAME);
        // Only switches that are asked for: a fault lasts shorter than this.
        let patience = LIMIT.as_millis().to_string();
        let set =
            sentinel.command(&["SENTINEL", "SET", NAME, "down-after-milliseconds", &patience]);
        assert!(set.is_ok(), "the Sentinel refuses its settings: {set:?}");
        Self { sentinel, servers: [primary, replica] }
    }

    pub(super) fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}/0", self.sentinel.address())
    }

    /// A server by its number, modulo how many there are.
    pub(super) fn node(&self, number: usize) -> &Redis {
        &self.servers[number % self.servers.len()]
    }

    /// Has the Sentinel switch to the replica. Before that, the primary takes no more writes, and the
    /// replica gets all that it has acknowledged: otherwise a switch may lose it.
    pub(super) fn fail_over(&self) -> Result {
        let [one, other] = &self.servers;
        let [primary, replica] = primary_and_replica(one, other);
        let paused = primary.command(&["CLIENT", "PAUSE", &LIMIT.as_millis().to_string(), "WRITE"]);
        assert!(paused.is_ok(), "writes cannot be paused: {paused:?}");
        let acknowledged = number(primary, "master_repl_offset");
        let has_all =
            || is_replica(replica) && number(replica, "slave_repl_offset") >= acknowledged;
        if !wait_until(has_all) {
            return Err(format!("the replica does not catch up; log:\n{}", replica.log()));
        }
        // An error until the Sentinel knows that the replica is well. Once it has agreed, another
        // request would have it switch back to the primary that does not follow the new one yet.
        let mut agreed = false;
        exchange([primary, replica], || {
            agreed = agreed || self.sentinel.command(&["SENTINEL", "FAILOVER", NAME]).is_ok();
        })?;
        primary.command(&["CLIENT", "UNPAUSE"]);
        Ok(())
    }
}
