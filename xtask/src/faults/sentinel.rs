//! A Redis primary with a replica, watched by a Sentinel.

use dq_servers::{Redis, Sentinel};

use super::replication::{LIMIT, expect_ok, is_replica, number, primary_and_replica, wait_until};
use crate::run::Result;

const NAME: &str = "dq";

#[derive(Debug)]
pub(crate) struct Watched {
    sentinel: Sentinel,
    /// Either one can be the primary.
    servers: [Redis; 2],
}

impl Watched {
    pub(super) fn start() -> Self {
        let primary = Redis::options().aof().start();
        let replica = Redis::options().aof().replica_of(&primary).start();
        let sentinel = Sentinel::start(&primary, NAME);
        // Allows only requested switches: faults are shorter than this.
        let patience = LIMIT.as_millis().to_string();
        let set = ["SENTINEL", "SET", NAME, "down-after-milliseconds", &patience];
        assert!(sentinel.command(&set).is_ok(), "the Sentinel refuses {set:?}");
        Self { sentinel, servers: [primary, replica] }
    }

    pub(super) fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}/0", self.sentinel.address())
    }

    /// `number` counts modulo the servers.
    pub(super) fn node(&self, number: usize) -> &Redis {
        &self.servers[number % self.servers.len()]
    }

    /// Makes the Sentinel switch to the replica. First, the primary stops writes until the replica
    /// has everything it acknowledged: a plain switch may lose it.
    pub(super) fn fail_over(&self) -> Result {
        let [one, other] = &self.servers;
        let [primary, replica] = primary_and_replica(one, other);
        let switched = self.switch(primary, replica);
        expect_ok(primary, &["CLIENT", "UNPAUSE"]);
        switched?;
        if wait_until(|| is_replica(primary)) {
            return Ok(());
        }
        Err(format!("the primary does not become a replica; log:\n{}", primary.log()))
    }

    fn switch(&self, primary: &Redis, replica: &Redis) -> Result {
        let pause = LIMIT.as_millis().to_string();
        expect_ok(primary, &["CLIENT", "PAUSE", &pause, "WRITE"]);
        let acknowledged = number(primary, "master_repl_offset")?;
        let has_all = || {
            let has = number(replica, "slave_repl_offset");
            is_replica(replica) && has.is_ok_and(|has| has >= acknowledged)
        };
        if !wait_until(has_all) {
            return Err(format!("the replica does not catch up; log:\n{}", replica.log()));
        }
        // Fails until the Sentinel considers the replica healthy. Once it has agreed, it is not
        // asked again: it might switch back.
        let agrees = || self.sentinel.command(&["SENTINEL", "FAILOVER", NAME]).is_ok();
        let has_switched = || self.sentinel.primary_port() == replica.port();
        if !(wait_until(agrees) && wait_until(has_switched)) {
            return Err(format!("the Sentinel does not switch; log:\n{}", replica.log()));
        }
        // Acts in place of the Sentinel, because its own messages to this server wait too.
        let port = replica.port().to_string();
        expect_ok(primary, &["REPLICAOF", "127.0.0.1", &port]);
        expect_ok(primary, &["CONFIG", "REWRITE"]);
        for clients in ["normal", "pubsub"] {
            primary.command(&["CLIENT", "KILL", "TYPE", clients]);
        }
        Ok(())
    }
}
