//! Checks the server when connecting, and reports findings for `check`.

use std::borrow::Cow;
use std::collections::HashMap;

use dq_core::{Error, ErrorKind, Finding, QueueName, Result, Severity};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use redis::Value;

use crate::connect::{CommandError, Link, can_subscribe};
use crate::error::{
    CLUSTER, Effect, RIGHTS, SENTINEL, is_refused, is_unknown_command, is_unknown_script, replica,
};
use crate::keys::Partition;
use crate::reply::{self, Reply};
use crate::resize::shards_mismatch;
use crate::script::{LIBRARY, Script};
use crate::shards::layout::Layout;
use crate::store::RedisBackend;

const MIN_VERSION: (u32, u32) = (6, 2);

const CONCURRENT_QUEUES: usize = 8;

/// Refuses an unusable server, as far as this user may see. `slot` is any slot in use.
/// Errors: `Incompatible` for a server that is too old or runs no scripts, `Config` for a topology
/// that needs another URL scheme, `ReadOnly` for a replica.
pub(crate) async fn probe(link: &Link, slot: u16) -> Result<()> {
    match link.query(Some(slot), &redis::cmd("HELLO")).await {
        // This user may not ask.
        Err(CommandError::Failed(error)) if is_refused(&error) => {}
        Err(CommandError::Failed(error)) if is_unknown_command(&error) => {
            return Err(too_old("the Redis server is older than 6.2, or has no command HELLO"));
        }
        answer => {
            let hello = link.result(Effect::Repeatable, answer)?;
            let mut fields: HashMap<String, Value> =
                redis::from_redis_value(hello).unwrap_or_default();
            let mut text = |name| {
                let value = fields.remove(name).and_then(|value| reply::bytes(value).ok());
                String::from_utf8_lossy(&value.unwrap_or_default()).into_owned()
            };
            refuse_old(&text("version"))?;
            refuse_other_topology(&text("mode"), link.server().is_cluster())?;
            if text("role") == "replica" && !link.server().origin().finds_primary {
                return Err(replica());
            }
        }
    }
    let probe = "return struct.size('L')";
    let sha = sha1_smol::Sha1::from(probe).digest().to_string();
    for (command, script) in [("EVAL", probe), ("EVALSHA", &sha)] {
        let mut call = redis::cmd(command);
        call.arg(script).arg(0);
        match link.query(None, &call).await {
            // NOSCRIPT: in a cluster EVAL may have run on another node.
            Err(CommandError::Failed(error)) if is_unknown_script(&error) => {}
            answer => drop(link.result(Effect::Repeatable, answer).map_err(no_scripting)?),
        }
    }
    Ok(())
}

/// Accepts versions in an unknown form.
fn refuse_old(text: &str) -> Result<()> {
    match version(text) {
        Some(version) if version < MIN_VERSION => {
            Err(too_old(format!("Redis {}.{} is too old", version.0, version.1)))
        }
        _ => Ok(()),
    }
}

fn too_old(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Incompatible, what)
        .remedy("use Redis 6.2 or newer, or Valkey, and do not rename its commands")
}

/// `mode` is `standalone`, `cluster` or `sentinel`.
fn refuse_other_topology(mode: &str, as_cluster: bool) -> Result<()> {
    let (what, remedy) = if mode == "sentinel" {
        ("the Redis server is a Sentinel, which keeps no data", SENTINEL)
    } else if mode == "cluster" && !as_cluster {
        ("the Redis server is a node of a cluster", CLUSTER)
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Config, what).remedy(remedy))
}

/// Keeps an error with another cause, like a missing right.
fn no_scripting(error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Internal | ErrorKind::Incompatible) {
        return error;
    }
    Error::new(ErrorKind::Incompatible, "the Redis server runs no Lua scripts")
        .remedy(
            "use a server with scripting and its `struct` library: Redis 6.2 or newer, or Valkey \
             with its Lua module",
        )
        .source(error)
}

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
    let script = Script::new(&LIBRARY, include_str!("scripts/inspect.lua"), Effect::Repeatable);
    let queues = backend.queues().await?;
    let calls: Vec<_> =
        queues.iter().map(|queue| queue_findings(backend, &script, queue).boxed()).collect();
    let calls = stream::iter(calls).buffered(CONCURRENT_QUEUES);
    calls.try_concat().await
}

async fn queue_findings(
    backend: &RedisBackend,
    script: &Script,
    queue: &QueueName,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    // Fails if the layout key has another type; the inspection below finds that.
    let layout = backend.stored_layout(queue).await;
    let stored = layout.as_ref().map_or(Layout::UNSHARDED.shards, |layout| layout.shards);
    for partition in &backend.partitions.make(queue, stored).all {
        findings.extend(partition_findings(backend, script, partition).await?);
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

/// Damage by other programs in a partition's keys, as `scripts/inspect.lua` replies.
async fn partition_findings(
    backend: &RedisBackend,
    script: &Script,
    partition: &Partition,
) -> Result<Vec<Finding>> {
    let mut reply = Reply::new(script.on([partition]).run(&backend.link).await?)?;
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
        let other = if backend.layout().is_shared(partition, &key) {
            "use another name for the queue"
        } else {
            "choose another `prefix`"
        };
        findings.push(Finding::new(
            Severity::Error,
            "redis.foreign-key",
            format!("queue {queue} cannot be served: the key {key} holds another type of value"),
            format!("rename or remove that key, or {other}"),
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

/// Empty if the reply has another form. `None` if this user may not run INFO, or it was renamed.
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

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_refused_by_their_version() {
        for (version, refused) in [
            ("5.0.14", true),
            ("6.0.16", true),
            ("6.2.0", false),
            ("7.0.15", false),
            ("10.1.0", false),
            ("255.255.255", false),
            ("unstable", false),
        ] {
            match refuse_old(version) {
                Ok(()) => assert!(!refused, "{version}"),
                Err(error) => {
                    assert!(refused, "{version}");
                    assert_eq!(error.kind(), ErrorKind::Incompatible);
                    assert!(error.message().contains(&version[..3]), "{error}");
                    assert!(error.remedy_text().is_some_and(|remedy| remedy.contains("6.2")));
                }
            }
        }
    }

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
