//! Findings about queues shared with Java.

use dq_core::{Finding, QueueName, Result, Severity};
use redis::Value;

use super::config::JavaVisibility;
use super::layout::order_key;
use crate::connect::Effect;
use crate::reply;
use crate::store::Store;

const OPERATION: &str = "check";

/// From this length on, each delivery searches the order list for about a millisecond.
const LONG_LIST: i64 = 30_000;

/// At most one finding per queue ever used with this prefix. Ignores server errors.
pub(super) async fn findings(store: &Store, visibility: JavaVisibility) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The native backend reports an unreachable server.
    for queue in store.queues(OPERATION).await.unwrap_or_default() {
        findings.extend(queue_finding(store, &queue, visibility).await.ok().flatten());
    }
    findings
}

async fn queue_finding(
    store: &Store,
    queue: &QueueName,
    visibility: JavaVisibility,
) -> Result<Option<Finding>> {
    let partition = store.partitions.unsharded(queue);
    if !partition.is_in_one_slot() {
        return Ok(Some(Finding {
            severity: Severity::Warning,
            code: "redisson.split-name",
            cause: format!("the keys of queue {queue} would lie in different slots of a cluster"),
            remedy: "before moving to a cluster, use a name without braces".to_owned(),
        }));
    }
    if visibility != JavaVisibility::Exact {
        return Ok(None);
    }
    let mut length = redis::cmd("LLEN");
    length.arg(order_key(&partition));
    let answer: Value = store.link.run(OPERATION, Effect::None, &length).await?;
    let length = reply::number(&answer).unwrap_or_default();
    Ok((length >= LONG_LIST).then(|| Finding {
        severity: Severity::Warning,
        code: "redisson.long-order-list",
        cause: format!(
            "the order list of queue {queue} has {length} entries, and each delivery searches it"
        ),
        remedy:
            "set `java_visibility` to \"approximate\", or to \"hidden\" if Java only offers and \
                 takes"
                .to_owned(),
    }))
}
