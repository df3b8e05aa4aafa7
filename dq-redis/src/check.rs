//! Findings for `check`: settings by which the server loses jobs, and damage by other programs.

use dq_core::{Error, Finding, QueueName, Result, Severity};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use redis::Value;

use crate::connect::{CommandError, Link, can_subscribe};
use crate::error::{Effect, RIGHTS, is_refused, is_unknown_command};
use crate::keys::Partition;
use crate::reply::{self, Reply};
use crate::resize::shards_mismatch;
use crate::shards::layout::Layout;
use crate::store::RedisBackend;

const CONCURRENT_QUEUES: usize = 8;

pub(crate) async fn findings(backend: &RedisBackend) -> Vec<Finding> {
    let mut findings = match info(&backend.link).await {
        Ok(Some(info)) => server_findings(&info),
        Ok(None) => vec![Finding::new(
            Severity::Info,
            "redis.settings-unknown",
            "this user may not run INFO: it is not known whether the server saves its data, and \
             whether it removes keys when its memory is full",
            "grant this user `+info`, or see to `appendonly yes` and `maxmemory-policy noeviction` \
             at the server",
        )],
        Err(error) => return vec![unreachable(error)],
    };
    let channel = backend.layout().test_channel();
    if let Err(error) = can_subscribe(backend.link.server(), &channel).await {
        findings.push(Finding::new(
            Severity::Warning,
            "redis.no-wakeups",
            format!(
                "no connection can subscribe to the channels of wake-ups ({error}): a job that is \
                 scheduled before all others is found up to a second late"
            ),
            if is_refused(&error) { RIGHTS } else { "check the server" },
        ));
    }
    match key_findings(backend).await {
        Ok(more) => findings.extend(more),
        Err(error) => findings.push(unreachable(error)),
    }
    findings
}

fn unreachable(error: Error) -> Finding {
    let error = error.operation("check");
    let remedy = error.remedy_text().unwrap_or("check the server");
    Finding::new(Severity::Error, "redis.unreachable", error.to_string(), remedy)
}

async fn key_findings(backend: &RedisBackend) -> Result<Vec<Finding>> {
    let queues = backend.queues().await?;
    let calls: Vec<_> = queues.iter().map(|queue| queue_findings(backend, queue).boxed()).collect();
    let calls = stream::iter(calls).buffered(CONCURRENT_QUEUES);
    calls.try_concat().await
}

async fn queue_findings(backend: &RedisBackend, queue: &QueueName) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    // This fails if the key has another type, which the inspection below finds.
    let layout = backend.stored_layout(queue).await;
    let stored = layout.as_ref().map_or(Layout::UNSHARDED.shards, |layout| layout.shards);
    for partition in &backend.partitions.make(queue, stored).all {
        findings.extend(partition_findings(backend, partition).await?);
    }
    if let Some(shards) = backend.shard_settings.for_queue(queue)
        && findings.is_empty()
    {
        let mismatch = || shards_mismatch(queue, stored, shards);
        let error = layout.err().or_else(|| (shards != stored).then(mismatch));
        findings.extend(error.map(|error| {
            let error = error.operation("check");
            let cause = format!("queue {queue} cannot be used: {error}");
            let remedy = error.remedy_text().unwrap_or("check the server");
            Finding::new(Severity::Error, "redis.queue-unusable", cause, remedy)
        }));
    }
    Ok(findings)
}

/// Finds damage by other programs in a partition's keys.
async fn partition_findings(backend: &RedisBackend, partition: &Partition) -> Result<Vec<Finding>> {
    let call = backend.scripts.inspect.on([partition]);
    let mut reply = Reply::new(call.run(&backend.link).await?)?;
    let mut findings = Vec::new();
    let (queue, quarantined) = (&partition.queue, reply.count()?);
    if quarantined > 0 {
        let (job, quarantine) = (partition.job_key(), partition.quarantine_key());
        findings.push(Finding::new(
            Severity::Warning,
            "redis.strays",
            format!("{quarantined} entries of queue {queue} are no jobs and were moved to quarantine"),
            format!(
                "find the program that writes there; ZRANGE {quarantine} 0 -1 lists the entries, the \
                 hash {job} holds their values; DEL {quarantine} removes them from this report"
            ),
        ));
    }
    while !reply.is_empty() {
        let key = reply.bytes()?;
        let key = String::from_utf8_lossy(&key);
        findings.push(Finding::new(
            Severity::Error,
            "redis.foreign-key",
            format!("queue {queue} cannot be served: the key {key} holds another type of value"),
            "rename or remove that key, or choose another `prefix` or another name for the queue",
        ));
    }
    Ok(findings)
}

fn server_findings(info: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(policy) = field(info, "maxmemory_policy")
        && policy != "noeviction"
        && field(info, "maxmemory") != Some("0")
    {
        findings.push(Finding::new(
            Severity::Error,
            "redis.evicts",
            format!("the server removes keys when its memory is full (maxmemory-policy {policy})"),
            "set `maxmemory-policy noeviction`, or give the jobs a server of their own",
        ));
    }
    if field(info, "aof_enabled") == Some("0") {
        findings.push(Finding::new(
            Severity::Warning,
            "redis.no-aof",
            "the server keeps no append-only file: a crash loses all changes since the last snapshot",
            "set `appendonly yes`; with `appendfsync everysec` a crash loses a second at most",
        ));
    }
    if field(info, "aof_last_write_status").is_some_and(|status| status != "ok") {
        findings.push(Finding::new(
            Severity::Error,
            "redis.aof-fails",
            "the server cannot write its append-only file",
            "see the server's log; free space on its disk",
        ));
    }
    findings
}

/// Reads INFO: empty if the reply has another form; `None` if this user may not run it, or it was
/// renamed.
async fn info(link: &Link) -> Result<Option<String>> {
    let answer = link.query(None, &redis::cmd("INFO")).await;
    if let Err(CommandError::Failed(error)) = &answer
        && (is_refused(error) || is_unknown_command(error))
    {
        return Ok(None);
    }
    let text = match link.result(Effect::Repeatable, answer)? {
        // A cluster replies with one text per node; one is enough.
        Value::Map(nodes) => nodes.into_iter().next().map(|(_, info)| info),
        answer => Some(answer),
    };
    let text = text.and_then(|text| match text {
        Value::VerbatimString { text, .. } => Some(text),
        text => String::from_utf8(reply::bytes(text).ok()?.to_vec()).ok(),
    });
    Ok(Some(text.unwrap_or_default()))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_jobs_are_found() {
        let codes = |info: &str| -> Vec<_> {
            server_findings(info).iter().map(|found| found.code).collect()
        };
        assert!(codes("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1").is_empty());
        assert_eq!(
            codes("maxmemory:9\r\nmaxmemory_policy:volatile-ttl\r\naof_enabled:0"),
            ["redis.evicts", "redis.no-aof"]
        );
        assert_eq!(codes("aof_enabled:1\r\naof_last_write_status:err\r\n"), ["redis.aof-fails"]);
    }
}
