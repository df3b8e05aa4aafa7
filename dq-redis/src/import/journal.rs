//! The journal of an import and the connection to its server.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::config::ConnectUrl;
use dq_core::import::{ImportJob, ImportJournal, JournalEntry, Stage, TakeRequest};
use dq_core::{Error, ErrorKind, JobId, Result, SystemClock};
use redis::{Cmd, Value};

use crate::config::RedisConfig;
use crate::connect::{Link, Server};
use crate::error::{Effect, unexpected};
use crate::keys::slot;
use crate::redisson::layout::tagged;
use crate::reply::{self, Reply};

/// A hash on the source's server with the entries that an import has taken.
#[derive(Debug)]
pub(super) struct Journal {
    link: Link,
    key: String,
}

impl Journal {
    /// `others` are further keys of the scripts.
    /// Errors: `Config` if the URL is not one of Redis, or the keys lie in different slots of a
    /// cluster.
    pub(super) fn new(url: &str, name: &str, others: &[&str]) -> Result<Self> {
        let url = ConnectUrl::parse(url)?;
        if !matches!(url.scheme().split('+').next(), Some("redis" | "rediss")) {
            return Err(refused(
                format!("{:?} is not a scheme of Redis URLs", url.scheme()),
                "write it like redis://user:password@host:6379/0",
            ));
        }
        let server = Server::new(&RedisConfig::from_url(&url)?.server())?;
        let key = tagged("dq_import", name);
        let mut keys = others.iter().copied().chain([name]);
        if server.is_cluster() && keys.any(|other| slot(other.as_bytes()) != slot(key.as_bytes())) {
            return Err(refused(
                format!("the keys of {name:?} are in different slots of the cluster"),
                "rename the queue: use no braces, or braces around a part that is not empty",
            ));
        }
        Ok(Self { link: Link::new(Arc::new(server), Arc::new(SystemClock)), key })
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Sends the script's text, because an import makes few calls.
    pub(super) async fn eval(
        &self,
        script: &str,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
        self.link.run(Effect::Lasting, &command).await
    }

    pub(super) async fn list(&self, command: &Cmd) -> Result<Reply> {
        Reply::new(self.link.run(Effect::Repeatable, command).await?)
    }

    pub(super) async fn scored(
        &self,
        zset: &str,
        skip: u64,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        let mut command = redis::cmd("ZRANGE");
        command.arg(zset).arg(skip).arg(skip + limit as u64 - 1).arg("WITHSCORES");
        pairs(self.list(&command).await?)
    }

    /// Moves entries from the source into the journal, by `take_zset.lua` or `take_list.lua`. LREM
    /// searches from `end`. Returns which entries were still there.
    pub(super) async fn take(
        &self,
        script: &str,
        keys: &[&str],
        end: &str,
        requests: &[TakeRequest],
    ) -> Result<Vec<bool>> {
        let entry = |request: &TakeRequest| (request.id.to_bytes(), request.job.to_record());
        let entries: Vec<_> = requests.iter().map(entry).collect();
        let mut arguments = vec![end.as_bytes()];
        for (request, (id, record)) in requests.iter().zip(&entries) {
            arguments.extend([&id[..], &request.token[..], &record[..]]);
        }
        self.flags(script, keys, &arguments).await
    }

    async fn flags(&self, script: &str, keys: &[&str], arguments: &[&[u8]]) -> Result<Vec<bool>> {
        let answers = reply::bytes(self.eval(script, keys, arguments).await?)?;
        Ok(answers.iter().map(|answer| *answer == b'Y').collect())
    }
}

#[async_trait]
impl ImportJournal for Journal {
    async fn entries(&self, limit: usize) -> Result<Vec<JournalEntry>> {
        let (script, limit) = (include_str!("journal_entries.lua"), limit.to_string());
        let answer = self.eval(script, &[&self.key], &[limit.as_bytes()]).await?;
        let entries = pairs(Reply::new(answer)?)?;
        entries.into_iter().map(|(id, entry)| parse_entry(&id, &entry)).collect()
    }

    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        let ids: Vec<_> = ids.iter().map(|id| id.to_bytes()).collect();
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
        self.flags(include_str!("mark_stored.lua"), &[&self.key], &ids).await
    }

    async fn remove(&self, ids: &[JobId]) -> Result<()> {
        let mut command = redis::cmd("HDEL");
        command.arg(&self.key);
        for id in ids {
            command.arg(&id.to_bytes()[..]);
        }
        self.link.run(Effect::Lasting, &command).await.map(drop)
    }
}

pub(super) fn pairs(mut reply: Reply) -> Result<Vec<(Bytes, Bytes)>> {
    let mut pairs = Vec::new();
    while !reply.is_empty() {
        pairs.push((reply.bytes()?, reply.bytes()?));
    }
    Ok(pairs)
}

fn parse_entry(id: &Bytes, entry: &Bytes) -> Result<JournalEntry> {
    let id = <[u8; 16]>::try_from(&id[..]).map(JobId::from_bytes);
    let stage = match entry.first() {
        Some(b'T') => Some(Stage::Taken),
        Some(b'S') => Some(Stage::Stored),
        _ => None,
    };
    match (id, stage) {
        (Ok(id), Some(stage)) => {
            Ok(JournalEntry { id, stage, job: ImportJob::from_record(&entry.slice(1..))? })
        }
        _ => Err(unexpected()),
    }
}

fn refused(what: String, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("import")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_slot_of_the_name() {
        assert_eq!(tagged("p", "orders"), "p:{orders}");
        assert_eq!(tagged("p", "a{x}b"), "p:a{x}b");
        let open = |name| Journal::new("redis+cluster://localhost", name, &[]);
        assert!(open("orders").is_ok() && open("a{x}b").is_ok());
        for name in ["my{}q", "a}b", "q{x"] {
            assert_eq!(open(name).unwrap_err().kind(), ErrorKind::Config, "{name}");
            assert!(Journal::new("redis://localhost", name, &[]).is_ok(), "{name}");
        }
    }
}
