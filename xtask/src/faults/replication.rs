//! A Redis primary and its replica.

use std::thread;
use std::time::{Duration, Instant};

use dq_servers::Redis;

use crate::run::Result;

/// Time limit for a failover, on a slow machine.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Sorts two servers by their present roles.
pub(super) fn primary_and_replica<'a>(one: &'a Redis, other: &'a Redis) -> [&'a Redis; 2] {
    if replication(one).contains("role:slave") { [other, one] } else { [one, other] }
}

pub(super) fn expect_ok(server: &Redis, command: &[&str]) {
    let reply = server.command(command);
    assert!(reply.is_ok(), "{command:?}: {reply:?}");
}

/// Whether a server is a replica with a connection to its primary.
pub(super) fn is_replica(node: &Redis) -> bool {
    let text = replication(node);
    text.contains("role:slave") && text.contains("master_link_status:up")
}

pub(super) fn number(node: &Redis, field: &str) -> Result<u64> {
    let text = replication(node);
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let value = fields.find(|(name, _)| *name == field).and_then(|(_, value)| value.parse().ok());
    value.ok_or_else(|| format!("Redis says no {field}:\n{text}"))
}

pub(super) fn replication(node: &Redis) -> String {
    node.command(&["INFO", "replication"]).text()
}

/// Waits until the condition holds. False if it does not hold within [`LIMIT`].
pub(super) fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    false
}
