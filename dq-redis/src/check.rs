//! Checks of the server when connecting, and `check` for operators: findings about the server and
//! the keys of all queues.

use dq_core::{Error, ErrorKind, Finding, QueueName, Result, Severity};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use redis::Value;

use crate::connect::{CommandError, Effect, Link};
use crate::error::{CLUSTER, SENTINEL, is_unknown_script, unexpected};
use crate::keys::Partition;
use crate::reply::{self, Reply};
use crate::script::{LIBRARY, Script};
use crate::shards::layout::Layout;
use crate::store::Store;

const CHECK: &str = "check";

const MIN_VERSION: (u32, u32) = (6, 2);

/// Maximum number of queues that are checked at a time.
const CONCURRENT_QUEUES: usize = 8;

/// Refuses a server that the backends cannot use.
///
/// # Errors
/// `Incompatible` for a server that is too old or runs no scripts, `Config` for one whose topology
/// needs another URL scheme, `ReadOnly` for a replica.
pub(crate) async fn probe(link: &Link) -> Result<()> {
    let info = info(link, "connect").await?;
    refuse_old(&info)?;
    refuse_other_topology(&info, link.server().is_cluster())?;
    // In a cluster any node may reply, and the client finds the primaries itself.
    if !link.server().is_cluster() && field(&info, "role") == Some("slave") {
        return Err(Error::new(ErrorKind::ReadOnly, "the Redis server is a replica")
            .remedy("connect to the primary, by redis+sentinel:// if it changes")
            .operation("connect"));
    }
    let probe = "return struct.size('L')";
    let sha = sha1_smol::Sha1::from(probe).digest().to_string();
    for (command, script) in [("EVAL", probe), ("EVALSHA", &sha)] {
        let mut call = redis::cmd(command);
        call.arg(script).arg(0);
        match link.query(&call).await {
            // NOSCRIPT: in a cluster EVAL may have run on another node. This one runs scripts, too.
            Err(CommandError::Failed(error)) if is_unknown_script(&error) => {}
            answer => {
                let answer = link.backend_result("connect", Effect::None, answer);
                drop(answer.map_err(no_scripting)?);
            }
        }
    }
    Ok(())
}

/// Refuses a server older than [`MIN_VERSION`]. A version that cannot be parsed is accepted.
fn refuse_old(info: &str) -> Result<()> {
    match version(info) {
        Some(version) if version < MIN_VERSION => Err(Error::new(
            ErrorKind::Incompatible,
            format!("Redis {}.{} is too old", version.0, version.1),
        )
        .remedy("use Redis 6.2 or newer, or Valkey")
        .operation("connect")),
        _ => Ok(()),
    }
}

/// Refuses a server whose topology needs another URL scheme.
fn refuse_other_topology(info: &str, as_cluster: bool) -> Result<()> {
    // Valkey uses the second name.
    let mode = field(info, "redis_mode").or_else(|| field(info, "server_mode"));
    let (what, remedy) = if mode == Some("sentinel") {
        ("the Redis server is a Sentinel, which keeps no data", SENTINEL)
    } else if field(info, "cluster_enabled") == Some("1") && !as_cluster {
        ("the Redis server is a node of a cluster", CLUSTER)
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect"))
}

/// Turns an error of the trial script into `Incompatible`, unless it has another cause, like a
/// missing right.
fn no_scripting(error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Internal | ErrorKind::Incompatible) {
        return error;
    }
    Error::new(ErrorKind::Incompatible, "the Redis server runs no Lua scripts")
        .remedy(
            "use a server with scripting and its `struct` library: Redis 6.2 or newer, or Valkey \
             with its Lua module",
        )
        .operation("connect")
        .source(error)
}

/// All findings about the server and the keys. A failed call is a finding, too.
pub(crate) async fn findings(store: &Store) -> Vec<Finding> {
    let mut findings = match info(&store.link, CHECK).await {
        Ok(info) => server_findings(&info),
        Err(error) => vec![unreachable(&error)],
    };
    match key_findings(store).await {
        Ok(more) => findings.extend(more),
        Err(error) if findings.is_empty() => findings.push(unreachable(&error)),
        Err(_) => {}
    }
    findings
}

/// Findings about all queues.
async fn key_findings(store: &Store) -> Result<Vec<Finding>> {
    let script = Script::new(&LIBRARY, include_str!("scripts/inspect.lua"), Effect::None);
    let queues = store.queues(CHECK).await?;
    let calls: Vec<_> =
        queues.iter().map(|queue| queue_findings(store, &script, queue).boxed()).collect();
    let mut calls = stream::iter(calls).buffered(CONCURRENT_QUEUES);
    let mut findings = Vec::new();
    while let Some(found) = calls.try_next().await? {
        findings.extend(found);
    }
    Ok(findings)
}

async fn queue_findings(store: &Store, script: &Script, queue: &QueueName) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    // Fails if the key that holds the layout has another type: the inspection below finds that.
    let layout = store.stored_layout(CHECK, queue).await;
    let stored = layout.as_ref().map_or(Layout::UNSHARDED.shards, |layout| layout.shards);
    for partition in &store.partitions.make(queue, stored).all {
        findings.extend(partition_findings(partition, inspect(store, script, partition).await?));
    }
    if let Some(shards) = store.shard_settings.for_queue(queue)
        && findings.is_empty()
    {
        let mismatch = || store.shards_mismatch(CHECK, queue, stored, shards);
        let error = layout.err().or_else(|| (shards != stored).then(mismatch));
        findings.extend(error.map(|error| unusable(queue, &error)));
    }
    Ok(findings)
}

/// The finding that the server cannot be checked.
fn unreachable(error: &Error) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "redis.unreachable",
        cause: error.to_string(),
        remedy: error.remedy_text().unwrap_or("check the server").to_owned(),
    }
}

/// Findings from the text of `INFO`: settings by which the server loses jobs.
fn server_findings(info: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, code, what: String, remedy: &str| {
        findings.push(Finding { severity, code, cause: what, remedy: remedy.to_owned() });
    };
    if let Some(policy) = field(info, "maxmemory_policy")
        && policy != "noeviction"
        && field(info, "maxmemory") != Some("0")
    {
        add(
            Severity::Error,
            "redis.evicts",
            format!("the server removes keys when its memory is full (maxmemory-policy {policy})"),
            "set `maxmemory-policy noeviction`, or give the jobs a server of their own",
        );
    }
    if field(info, "aof_enabled") == Some("0") {
        add(
            Severity::Warning,
            "redis.no-aof",
            "the server keeps no append-only file: a crash loses all changes since the last snapshot"
                .to_owned(),
            "set `appendonly yes`; with `appendfsync everysec` a crash loses a second at most",
        );
    }
    if field(info, "aof_last_write_status").is_some_and(|status| status != "ok") {
        add(
            Severity::Error,
            "redis.aof-fails",
            "the server cannot write its append-only file".to_owned(),
            "see the server's log; free space on its disk",
        );
    }
    findings
}

/// The finding that a queue cannot be used.
fn unusable(queue: &QueueName, error: &Error) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "redis.queue-unusable",
        cause: format!("queue {queue} cannot be used: {error}"),
        remedy: error.remedy_text().unwrap_or("check the server").to_owned(),
    }
}

/// The reply of `scripts/inspect.lua`: traces of other programs in the keys of a partition.
struct Inspection {
    /// The number of quarantined entries.
    quarantined: i64,
    /// The names of keys that have another type.
    mistyped_keys: Vec<String>,
}

async fn inspect(store: &Store, script: &Script, partition: &Partition) -> Result<Inspection> {
    let answer = script.on([partition]).run(&store.link, CHECK).await?;
    let read = |answer| {
        let mut reply = Reply::new(answer)?;
        let quarantined = reply.number()?;
        let mut mistyped_keys = Vec::new();
        while !reply.is_empty() {
            mistyped_keys.push(String::from_utf8_lossy(&reply.bytes()?).into_owned());
        }
        Some(Inspection { quarantined, mistyped_keys })
    };
    match read(answer) {
        Some(inspection) => Ok(inspection),
        None => unexpected(CHECK),
    }
}

fn partition_findings(partition: &Partition, inspection: Inspection) -> Vec<Finding> {
    let mut findings = Vec::new();
    let queue = &partition.queue;
    if inspection.quarantined > 0 {
        let (job, quarantine) = (partition.job_key(), partition.quarantine_key());
        findings.push(Finding {
            severity: Severity::Warning,
            code: "redis.strays",
            cause: format!(
                "{} entries of queue {queue} are no jobs and were moved to quarantine",
                inspection.quarantined
            ),
            remedy: format!(
                "find the program that writes there; ZRANGE {quarantine} 0 -1 lists the entries, the \
                 hash {job} holds their values; DEL {quarantine} removes them from this report"
            ),
        });
    }
    for key in inspection.mistyped_keys {
        findings.push(Finding {
            severity: Severity::Error,
            code: "redis.foreign-key",
            cause: format!(
                "queue {queue} cannot be served: the key {key} holds another type of value"
            ),
            remedy: if partition.is_java_key(&key) {
                "rename or remove that key, or use another name for the queue".to_owned()
            } else {
                "rename or remove that key, or choose another `prefix`".to_owned()
            },
        });
    }
    findings
}

/// The text of the command `INFO`; empty if the reply has another form.
async fn info(link: &Link, operation: &'static str) -> Result<String> {
    let answer = link.run(operation, Effect::None, &redis::cmd("INFO")).await?;
    let text = match answer {
        // A cluster replies with the text of each node; one is enough.
        Value::Map(nodes) => nodes.into_iter().next().map(|(_, info)| info),
        answer => Some(answer),
    };
    let text = text.and_then(|text| match text {
        Value::VerbatimString { text, .. } => Some(text),
        text => String::from_utf8(reply::bytes(text)?.to_vec()).ok(),
    });
    Ok(text.unwrap_or_default())
}

/// The value of a field `name:value` in the text of `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Major and minor version.
fn version(info: &str) -> Option<(u32, u32)> {
    let mut parts = field(info, "redis_version")?.split('.');
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
            let info = format!("# Server\r\nredis_version:{version}\r\nrole:master\r\n");
            match refuse_old(&info) {
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
    fn servers_of_another_topology_are_refused_with_their_scheme() {
        let refused = |info, as_cluster| {
            let error = refuse_other_topology(info, as_cluster).err()?;
            assert_eq!(error.kind(), ErrorKind::Config);
            error.remedy_text().map(str::to_owned)
        };
        assert!(refused("cluster_enabled:1\r\n", false).unwrap().contains("redis+cluster://"));
        assert_eq!(refused("cluster_enabled:1\r\n", true), None);
        assert_eq!(refused("redis_mode:standalone\r\ncluster_enabled:0\r\n", false), None);
        for sentinel in ["redis_mode:sentinel\r\n", "server_mode:sentinel\r\n"] {
            assert!(refused(sentinel, false).unwrap().contains("redis+sentinel://"));
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
