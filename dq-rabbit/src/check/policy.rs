//! Broker policies that drop messages of this backend.

use dq_core::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::check::management::ManagementApi;
use crate::topology::Topology;

pub(crate) const REMEDY: &str = "exclude names that begin with the prefix and .v1. from the policy";

/// Refuses a broker with policies that would delete live jobs from the log.
///
/// # Errors
/// `Config` with the policy's key; errors of the management API.
pub(crate) async fn refuse(management: &ManagementApi, topology: &Topology) -> Result<()> {
    let queues = management.queues("name,effective_policy_definition").await?;
    let is_log =
        |queue: &&Value| queue["name"].as_str().is_some_and(|name| topology.names().is_log(name));
    let mut log = queues.as_array().into_iter().flatten().filter(is_log);
    match log.find_map(|queue| harmful_key(queue, topology)) {
        None => Ok(()),
        Some((name, key)) => {
            let what = format!("a policy sets `{key}` for {name}: it would delete live jobs");
            Err(Error::new(ErrorKind::Config, what).remedy(REMEDY).operation("connect"))
        }
    }
}

pub(crate) fn harmful(queues: &Value, topology: &Topology) -> Option<String> {
    let harmful_key = |queue: &Value| harmful_key(queue, topology);
    let affected: Vec<_> = queues.as_array()?.iter().filter_map(harmful_key).collect();
    let (name, key) = affected.first()?;
    let more = affected.len() - 1;
    Some(format!("a policy sets `{key}` for {name} and {more} more queues of this backend"))
}

/// Returns the queue's name and the key of a policy that drops its messages. The log's directory
/// has a limit of its own, but its policies are likely to hit the generations too.
fn harmful_key(queue: &Value, topology: &Topology) -> Option<(String, &'static str)> {
    let names = topology.names();
    let name = queue["name"].as_str().filter(|name| names.contains(name))?;
    let policy = queue["effective_policy_definition"].as_object()?;
    let is_harmful = |key: &&str| policy.contains_key(*key);
    let keys = ["message-ttl", "expires", "max-length", "max-length-bytes", "max-age"];
    Some((name.to_owned(), keys.into_iter().find(is_harmful)?))
}
