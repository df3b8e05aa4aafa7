//! What the server must be, and what an operator should know about it.

use dq_core::{Error, ErrorKind, Finding, Result, Severity};
use redis::Value;

use crate::connect::{Effect, Link};
use crate::reply;
use crate::store::Store;

const OLDEST: (u32, u32) = (6, 2);

/// Refuses a server that will not do.
pub(crate) async fn probe(link: &Link) -> Result<()> {
    let info = info(link, "connect").await?;
    if let Some(version) = version(&info)
        && version < OLDEST
    {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!("Redis {}.{} is too old", version.0, version.1),
        )
        .remedy("use Redis 6.2 or newer, or Valkey")
        .operation("connect"));
    }
    if field(&info, "role") == Some("slave") {
        return Err(Error::new(ErrorKind::ReadOnly, "the Redis server is a replica")
            .remedy("connect to the primary, by redis+sentinel:// if it changes")
            .operation("connect"));
    }
    let mut eval = redis::cmd("EVAL");
    eval.arg("return struct.size('L')").arg(0);
    link.run("connect", Effect::None, &eval).await.map_err(|error| {
        match error.kind() {
            ErrorKind::Internal | ErrorKind::Incompatible => {
                Error::new(ErrorKind::Incompatible, "the Redis server runs no Lua scripts")
                    .remedy("use a server with scripting and its `struct` library: Redis 6.2 or newer, or Valkey with its Lua module")
                    .operation("connect")
                    .source(error)
            }
            _ => error,
        }
    })?;
    Ok(())
}

/// What an operator should know.
pub(crate) async fn findings(store: &Store) -> Vec<Finding> {
    match info(&store.link, "check").await {
        Ok(info) => of_info(&info),
        Err(error) => vec![Finding {
            severity: Severity::Error,
            code: "redis.unreachable",
            what: error.to_string(),
            remedy: error.remedy_text().unwrap_or("check the server").to_owned(),
        }],
    }
}

fn of_info(info: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, code, what: String, remedy: &str| {
        findings.push(Finding { severity, code, what, remedy: remedy.to_owned() });
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
