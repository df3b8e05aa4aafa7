//! Refuses an unusable server when connecting.

use std::borrow::Cow;
use std::collections::HashMap;

use dq_core::{Error, ErrorKind, Result};
use redis::Value;

use crate::connect::{CommandError, Link};
use crate::error::{CLUSTER, Effect, SENTINEL, is_refused, is_unknown_command, replica};
use crate::reply;

/// Major and minor number of the oldest version with all commands.
const MIN_VERSION: (u32, u32) = (6, 2);

/// Asks the server what it is. In a cluster, a node answers that serves this slot.
///
/// Errors: `Incompatible` for a server that is too old, `Config` for a topology that needs another
/// URL scheme, `ReadOnly` for a replica.
pub(crate) async fn probe(link: &Link, slot: u16) -> Result<()> {
    let answer = link.query(Some(slot), &redis::cmd("HELLO")).await;
    match &answer {
        // This user may not ask, which is no reason to refuse the server.
        Err(CommandError::Failed(error)) if is_refused(error) => return Ok(()),
        Err(CommandError::Failed(error)) if is_unknown_command(error) => {
            return Err(too_old("the Redis server is older than 6.2, or has no command HELLO"));
        }
        _ => {}
    }
    let hello = link.result(Effect::Repeatable, answer)?;
    let mut fields: HashMap<String, Value> = redis::from_redis_value(hello).unwrap_or_default();
    let mut text = |name| {
        let value = fields.remove(name).and_then(|value| reply::bytes(value).ok());
        String::from_utf8_lossy(&value.unwrap_or_default()).into_owned()
    };
    refuse_old(&text("version"))?;
    refuse_other_topology(&text("mode"), link.server().is_cluster())?;
    if text("role") == "replica" && !link.server().origin().finds_primary {
        return Err(replica());
    }
    Ok(())
}

/// Accepts versions in an unknown form.
fn refuse_old(text: &str) -> Result<()> {
    match version(text) {
        Some((major, minor)) if (major, minor) < MIN_VERSION => {
            Err(too_old(format!("Redis {major}.{minor} is too old")))
        }
        _ => Ok(()),
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn too_old(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Incompatible, what)
        .remedy("use Redis 6.2 or newer, or Valkey, and do not rename its commands")
}

fn refuse_other_topology(mode: &str, as_cluster: bool) -> Result<()> {
    let (what, remedy) = match mode {
        "sentinel" => ("the Redis server is a Sentinel, which keeps no data", SENTINEL),
        "cluster" if !as_cluster => ("the Redis server is a node of a cluster", CLUSTER),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Config, what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_refused_by_their_version() {
        for version in ["6.2.0", "7.0.15", "10.1.0", "255.255.255", "unstable"] {
            assert!(refuse_old(version).is_ok(), "{version}");
        }
        for version in ["5.0.14", "6.0.16"] {
            let error = refuse_old(version).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.message().contains(&version[..3]), "{error}");
        }
    }
}
