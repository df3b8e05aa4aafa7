//! Expiry keys: empty keys `{prefix}:alarm:<due>:<queue>` that expire when jobs are due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dq_core::{Clock, Due, QueueName, Result, Timestamp};
use futures_util::future::try_join_all;
use redis::Cmd;

use crate::connect::{Effect, Link};

const MAX_IN_FLIGHT: usize = 128;

#[derive(Debug)]
pub(super) struct ExpiryKeys {
    link: Arc<Link>,
    names: KeyNames,
    clock: Arc<dyn Clock>,
    /// The server's time, in Unix milliseconds, when `clock` showed zero.
    server_offset: AtomicI64,
}

/// The literal braces are a hash tag, so that all keys of a prefix have one slot in a cluster.
/// `<due>` is Unix milliseconds.
#[derive(Debug, Clone)]
pub(super) struct KeyNames {
    key_prefix: String,
}

impl KeyNames {
    pub(super) fn new(prefix: &str) -> Self {
        Self { key_prefix: format!("{{{prefix}}}:alarm:") }
    }

    /// Not an expiry key, but has the same prefix, to test the user's rights.
    pub(super) fn test_key(&self) -> String {
        format!("{}rights", self.key_prefix)
    }

    fn key(&self, queue: &QueueName, due: Timestamp) -> String {
        format!("{}{}:{queue}", self.key_prefix, due.as_millis())
    }

    pub(super) fn parse(&self, key: &[u8]) -> Option<(QueueName, Timestamp)> {
        let rest = str::from_utf8(key.strip_prefix(self.key_prefix.as_bytes())?).ok()?;
        let (due, queue) = rest.split_once(':')?;
        Some((QueueName::new(queue).ok()?, Timestamp::from_millis(due.parse().ok()?)))
    }
}

impl ExpiryKeys {
    pub(super) fn new(link: Arc<Link>, names: KeyNames, clock: Arc<dyn Clock>) -> Self {
        Self { link, names, clock, server_offset: AtomicI64::new(0) }
    }

    /// Updates the estimate: a call sent at `sent`, by [`elapsed`](Self::elapsed), returned `now`.
    /// The estimate is ahead of the server by at most the call's duration, and never behind,
    /// because a key that expires too early causes an empty claim.
    pub(super) fn observe_server_time(&self, sent: i64, now: Timestamp) {
        self.server_offset.store(now.as_millis().saturating_sub(sent), Ordering::Relaxed);
    }

    pub(super) fn resolve(&self, due: Due) -> Timestamp {
        due.resolve(self.server_time())
    }

    fn server_time(&self) -> Timestamp {
        let offset = self.server_offset.load(Ordering::Relaxed);
        Timestamp::from_millis(offset.saturating_add(self.elapsed()))
    }

    pub(super) fn elapsed(&self) -> i64 {
        i64::try_from(self.clock.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Sets a key for each due time in the future. Only logs a failure: the jobs are stored, and
    /// timers start them.
    pub(super) async fn set(&self, dues: impl IntoIterator<Item = (&QueueName, Timestamp)>) {
        if let Err(error) = self.send(&self.commands(dues)).await {
            tracing::debug!(%error, "Redis: expiry keys were not set; jobs are started by timers");
        }
    }

    fn commands<'a>(&self, dues: impl IntoIterator<Item = (&'a QueueName, Timestamp)>) -> Vec<Cmd> {
        let now = self.server_time();
        let dues: BTreeSet<_> = dues.into_iter().filter(|(_, due)| *due > now).collect();
        let command = |(queue, due): (&QueueName, Timestamp)| {
            let mut set = redis::cmd("SET");
            set.arg(self.names.key(queue, due)).arg("").arg("PXAT").arg(due.as_millis());
            set
        };
        dues.into_iter().map(command).collect()
    }

    async fn send(&self, commands: &[Cmd]) -> Result<()> {
        for chunk in commands.chunks(MAX_IN_FLIGHT) {
            let sent =
                chunk.iter().map(|command| self.link.run("set expiry key", Effect::None, command));
            try_join_all(sent).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutated_names_are_parsed_or_ignored() {
        let names = KeyNames::new("shop");
        let valid = ["{shop}:alarm:1700000000123:q", "{shop}:alarm:-1:a:b"];
        dq_testkit::fuzz::check("names of expiry keys", &valid, |key| {
            let parsed = names.parse(key);
            let is_accepted = parsed.is_some();
            if let Some((queue, due)) = parsed {
                names.key(&queue, due);
            }
            is_accepted
        });
    }

    #[test]
    fn key_names_are_parsed_back() {
        let names = KeyNames::new("shop");
        for queue in ["q", "a:b", "}{", "{x}", "订单", ":"] {
            let queue = QueueName::new(queue).unwrap();
            let due = Timestamp::from_millis(1_700_000_000_123);
            let key = names.key(&queue, due);
            assert_eq!(names.parse(key.as_bytes()), Some((queue, due)), "{key}");
        }
    }

    #[test]
    fn keys_of_other_names_are_not_parsed_as_expiry_keys() {
        let names = KeyNames::new("shop");
        for key in [
            "session:1",
            "{shop}:alarm:",
            "{shop}:alarm:1",
            "{shop}:alarm:1:",
            "{shop}:alarm:soon:q",
            "{shop2}:alarm:1:q",
            "{shop}:canary:1",
            "{shop}:alarm:1:a\nb",
        ] {
            assert_eq!(names.parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(names.parse(b"{shop}:alarm:1:\xff"), None);
    }
}
