//! What the server must be, and what an operator should know about it.

use dq_core::{Error, ErrorKind, Finding, Result, Severity};
use redis::Value;

use crate::connect::{Effect, Link};
use crate::error::{CLUSTER, SENTINEL};
use crate::reply;
use crate::store::Store;

const OLDEST: (u32, u32) = (6, 2);

/// Refuses a server that will not do.
pub(crate) async fn probe(link: &Link) -> Result<()> {
    let info = info(link, "connect").await?;
    refuse_old(&info)?;
    refuse_other_kind(&info, link.server().is_cluster())?;
    // A cluster answers by some node, and finds its primaries itself.
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
        match link.run("connect", Effect::None, &call).await {
            // Of a cluster's nodes, another may have been asked: it runs scripts.
            Err(error) if error.message().contains("NOSCRIPT") => {}
            ran => drop(ran.map_err(without_scripts)?),
        }
    }
    Ok(())
}

fn refuse_old(info: &str) -> Result<()> {
    match version(info) {
        Some(version) if version < OLDEST => Err(Error::new(
            ErrorKind::Incompatible,
            format!("Redis {}.{} is too old", version.0, version.1),
        )
        .remedy("use Redis 6.2 or newer, or Valkey")
        .operation("connect")),
        _ => Ok(()),
    }
}

/// Refuses servers that another scheme of the URL is for.
fn refuse_other_kind(info: &str, as_cluster: bool) -> Result<()> {
    // By the second name in Valkey.
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

fn without_scripts(error: Error) -> Error {
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

/// What an operator should know.
pub(crate) async fn findings(store: &Store) -> Vec<Finding> {
    match info(&store.link, "check").await {
        Ok(info) => of_info(&info),
        Err(error) => vec![unreachable(&error)],
    }
}

/// The finding that nothing could be found.
pub(crate) fn unreachable(error: &Error) -> Finding {
    Finding {
        severity: Severity::Error,
        code: "redis.unreachable",
        cause: error.to_string(),
        remedy: error.remedy_text().unwrap_or("check the server").to_owned(),
    }
}

fn of_info(info: &str) -> Vec<Finding> {
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
            "the server keeps no append-only file: a crash loses what came since the last snapshot"
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

async fn info(link: &Link, operation: &'static str) -> Result<String> {
    let answer = link.run(operation, Effect::None, &redis::cmd("INFO")).await?;
    let text = match answer {
        // A cluster answers node by node; any will do.
        Value::Map(nodes) => nodes.into_iter().next().map(|(_, info)| info),
        answer => Some(answer),
    };
    let text = text.and_then(|text| match text {
        Value::VerbatimString { text, .. } => Some(text),
        text => String::from_utf8(reply::bytes(text)?.to_vec()).ok(),
    });
    Ok(text.unwrap_or_default())
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

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
    fn servers_of_another_kind_are_refused_with_their_scheme() {
        let refused = |info, as_cluster| {
            let error = refuse_other_kind(info, as_cluster).err()?;
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
        let codes =
            |info: &str| -> Vec<_> { of_info(info).iter().map(|found| found.code).collect() };
        assert!(codes("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1").is_empty());
        assert_eq!(
            codes("maxmemory:9\r\nmaxmemory_policy:volatile-ttl\r\naof_enabled:0"),
            ["redis.evicts", "redis.no-aof"]
        );
        assert_eq!(codes("aof_enabled:1\r\naof_last_write_status:err\r\n"), ["redis.aof-fails"]);
    }
}
