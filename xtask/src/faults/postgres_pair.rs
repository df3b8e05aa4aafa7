//! A PostgreSQL primary and its standby, which has every commit before the client does.

use dq_servers::Postgres;

use super::replication::wait_until;
use crate::run::Result;

#[derive(Debug)]
pub(crate) struct PostgresPair {
    /// Either one can be the primary.
    servers: [Postgres; 2],
}

impl PostgresPair {
    pub(super) fn start() -> Self {
        let primary = Postgres::start();
        let standby = Postgres::options().standby_of(&primary).start();
        // A commit waits for the standby from here on, also after a failover.
        for server in [&primary, &standby] {
            server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'");
            server.execute("SELECT pg_reload_conf()");
        }
        Self { servers: [primary, standby] }
    }

    pub(super) fn url(&self) -> String {
        let [one, other] = &self.servers;
        one.url().replace(&one.address(), &format!("{},{}", one.address(), other.address()))
    }

    /// `number` counts modulo the servers.
    pub(super) fn node(&self, number: usize) -> &Postgres {
        &self.servers[number % self.servers.len()]
    }

    /// Kills the primary, promotes the standby, and makes the killed server its standby.
    pub(super) fn fail_over(&self) -> Result {
        let (old, new) = self.roles();
        let is_synchronous = || {
            let state = old.try_execute("SELECT sync_state FROM pg_stat_replication");
            state.is_ok_and(|state| state == "sync")
        };
        if !wait_until(is_synchronous) {
            return Err(format!("the standby does not follow; log:\n{}", old.log()));
        }
        old.kill();
        new.promote();
        old.rejoin(new);
        Ok(())
    }

    /// The primary and the standby.
    fn roles(&self) -> (&Postgres, &Postgres) {
        let [one, other] = &self.servers;
        let is_standby = one.execute("SELECT pg_is_in_recovery()") == "t";
        if is_standby { (other, one) } else { (one, other) }
    }
}
