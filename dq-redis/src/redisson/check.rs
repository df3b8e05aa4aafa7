//! What an operator should know about queues shared with Java.

use dq_core::{Finding, QueueName, Result, Severity};
use redis::Value;

use super::config::OrderList;
use crate::connect::Effect;
use crate::reply;
use crate::store::Store;

const CHECK: &str = "check";

/// From this length on, the walk through the order list takes a millisecond for each delivery.
const LONG: i64 = 30_000;

/// What is to be said about each queue that was ever used here.
pub(super) async fn findings(store: &Store, order_list: OrderList) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A store that cannot be asked has been reported already.
    for queue in store.queues(CHECK).await.unwrap_or_default() {
        findings.extend(of_queue(store, &queue, order_list).await.ok().flatten());
    }
    findings
}

async fn of_queue(
    store: &Store,
    queue: &QueueName,
    order_list: OrderList,
) -> Result<Option<Finding>> {
    let lane = store.partitions.unsharded(queue);
    if !lane.is_in_one_slot() {
        return Ok(Some(Finding {
            severity: Severity::Warning,
            code: "redisson.split-name",
            what: format!("the keys of queue {queue} would lie in different slots of a cluster"),
            remedy: "before moving to a cluster, use a name without braces".to_owned(),
        }));
    }
    if order_list != OrderList::Strict {
        return Ok(None);
    }
    let mut length = redis::cmd("LLEN");
    length.arg(lane.order());
    let answer: Value = store.link.run(CHECK, Effect::None, &length).await?;
    let length = reply::number(&answer).unwrap_or_default();
    Ok((length >= LONG).then(|| Finding {
        severity: Severity::Warning,
        code: "redisson.long-order-list",
        what: format!(
            "the order list of queue {queue} has {length} entries, and each delivery walks through it"
        ),
        remedy: "set `order_list` to \"lazy\", or to \"off\" if Java only offers and takes".to_owned(),
    }))
}
