//! Findings about queues shared with Java.

use dq_core::{Finding, QueueName, Result, Severity};

use super::config::JavaVisibility;
use super::layout::order_key;
use crate::error::Effect;
use crate::reply;
use crate::store::RedisBackend;

/// From this length on, each delivery searches the order list for about a millisecond.
const LONG_LIST: i64 = 30_000;

/// Returns at most one finding for each queue known under this prefix. Ignores server errors,
/// because the native backend reports an unreachable server.
pub(super) async fn findings(native: &RedisBackend, visibility: JavaVisibility) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in native.queues().await.unwrap_or_default() {
        findings.extend(queue_finding(native, &queue, visibility).await.ok().flatten());
    }
    findings
}

async fn queue_finding(
    native: &RedisBackend,
    queue: &QueueName,
    visibility: JavaVisibility,
) -> Result<Option<Finding>> {
    let partition = native.partitions.unsharded(queue);
    if !partition.is_in_one_slot() {
        return Ok(Some(Finding::new(
            Severity::Warning,
            "redisson.split-name",
            format!("the keys of queue {queue} would lie in different slots of a cluster"),
            "before moving to a cluster, use a name without braces",
        )));
    }
    if visibility != JavaVisibility::Exact {
        return Ok(None);
    }
    let mut length = redis::cmd("LLEN");
    length.arg(order_key(&partition));
    let length = reply::number(&native.link.run(Effect::Repeatable, &length).await?)?;
    if length < LONG_LIST {
        return Ok(None);
    }
    Ok(Some(Finding::new(
        Severity::Warning,
        "redisson.long-order-list",
        format!(
            "the order list of queue {queue} has {length} entries, and each delivery searches it"
        ),
        "set `java_visibility` to \"approximate\", or to \"hidden\" if Java only offers and takes",
    )))
}
