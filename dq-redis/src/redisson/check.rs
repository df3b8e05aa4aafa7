//! Findings about queues shared with Java.

use dq_core::{Finding, Result, Severity};

use super::config::JavaVisibility;
use super::layout::order_key;
use crate::error::Effect;
use crate::keys::Partition;
use crate::reply;
use crate::store::RedisBackend;

/// From this length on, each delivery searches the order list for about a millisecond.
const LONG_LIST: i64 = 30_000;

/// Returns at most one finding for each queue. Ignores server errors, because the native backend
/// reports an unreachable server.
pub(super) async fn findings(native: &RedisBackend, visibility: JavaVisibility) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in native.queues().await.unwrap_or_default() {
        let partition = native.partitions.unsharded(&queue);
        if !partition.is_in_one_slot() {
            findings.push(Finding::new(
                Severity::Warning,
                "redisson.split-name",
                format!("the keys of queue {queue} would lie in different slots of a cluster"),
                "before moving to a cluster, use a name without braces",
            ));
        } else if visibility == JavaVisibility::Exact
            && let Ok(length @ LONG_LIST..) = order_length(native, &partition).await
        {
            findings.push(Finding::new(
                Severity::Warning,
                "redisson.long-order-list",
                format!("the order list of queue {queue} has {length} entries, and each delivery searches it"),
                "set `java_visibility` to \"approximate\", or to \"hidden\" if Java only offers and takes",
            ));
        }
    }
    findings
}

async fn order_length(native: &RedisBackend, partition: &Partition) -> Result<i64> {
    let mut length = redis::cmd("LLEN");
    length.arg(order_key(partition));
    reply::number(&native.link.run(Effect::Repeatable, &length).await?)
}
