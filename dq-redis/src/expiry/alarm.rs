//! Alarms: keys that expire when something is due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dq_core::{Clock, Due, QueueName, Result, Timestamp};
use futures_util::future::try_join_all;
use redis::Cmd;

use crate::connect::{Effect, Link};

/// Alarms that are on their way at once.
const AHEAD: usize = 128;

/// Sets alarms.
#[derive(Debug)]
pub(super) struct Alarms {
    link: Arc<Link>,
    names: Names,
    clock: Arc<dyn Clock>,
    /// The server's time when `clock` began to count.
    began: AtomicI64,
}

/// How the keys are named.
#[derive(Debug, Clone)]
pub(super) struct Names {
    start: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { start: format!("{{{prefix}}}:alarm:") }
    }

    /// A key that is no alarm, for a look at what is allowed.
    pub(super) fn proof(&self) -> String {
        format!("{}rights", self.start)
    }

    fn key(&self, queue: &QueueName, due: Timestamp) -> String {
        format!("{}{}:{queue}", self.start, due.as_millis())
    }

    /// Which queue and time a key stands for; `None` if it is not one of these.
    pub(super) fn read(&self, key: &[u8]) -> Option<(QueueName, Timestamp)> {
        let rest = str::from_utf8(key.strip_prefix(self.start.as_bytes())?).ok()?;
        let (due, queue) = rest.split_once(':')?;
        Some((QueueName::new(queue).ok()?, Timestamp::from_millis(due.parse().ok()?)))
    }
}

impl Alarms {
    pub(super) fn new(link: Arc<Link>, names: Names, clock: Arc<dyn Clock>) -> Self {
        Self { link, names, clock, began: AtomicI64::new(0) }
    }

    /// Learns what the server's clock showed in a call that was begun at `asked`. Counted from there,
    /// what is taken for the server's time is ahead by what the call took at most, and never behind:
    /// an alarm before its time would only cause a claim that brings nothing.
    pub(super) fn learn(&self, asked: i64, now: Timestamp) {
        self.began.store(now.as_millis().saturating_sub(asked), Ordering::Relaxed);
    }

    /// A due time by the server's clock, as far as it is known here: an alarm may be a little off.
    pub(super) fn resolve(&self, due: Due) -> Timestamp {
        due.resolve(self.now())
    }

    fn now(&self) -> Timestamp {
        let began = self.began.load(Ordering::Relaxed);
        Timestamp::from_millis(began.saturating_add(self.elapsed()))
    }

    /// Milliseconds by our own clock, for [`learn`](Self::learn).
    pub(super) fn elapsed(&self) -> i64 {
        i64::try_from(self.clock.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Sets alarms for what is due in the future. That one cannot be set is no failure of the call
    /// for whose jobs they are: these are in the store.
    pub(super) async fn set(&self, dues: impl IntoIterator<Item = (&QueueName, Timestamp)>) {
        if let Err(error) = self.send(&self.commands(dues)).await {
            tracing::debug!(%error, "Redis: alarms were not set; timers go on");
        }
    }

    /// One command per queue and due time.
    fn commands<'a>(&self, dues: impl IntoIterator<Item = (&'a QueueName, Timestamp)>) -> Vec<Cmd> {
        let now = self.now();
        let dues: BTreeSet<_> = dues.into_iter().filter(|(_, due)| *due > now).collect();
        let command = |(queue, due): (&QueueName, Timestamp)| {
            let mut set = redis::cmd("SET");
            set.arg(self.names.key(queue, due)).arg("").arg("PXAT").arg(due.as_millis());
            set
        };
        dues.into_iter().map(command).collect()
    }

    async fn send(&self, commands: &[Cmd]) -> Result<()> {
        for some in commands.chunks(AHEAD) {
            let sent = some.iter().map(|command| self.link.run("alarm", Effect::None, command));
            try_join_all(sent).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let names = Names::new("shop");
        for queue in ["q", "a:b", "}{", "{x}", "订单", ":"] {
            let queue = QueueName::new(queue).unwrap();
            let due = Timestamp::from_millis(1_700_000_000_123);
            let key = names.key(&queue, due);
            assert_eq!(names.read(key.as_bytes()), Some((queue, due)), "{key}");
        }
    }

    #[test]
    fn foreign_keys_are_no_alarms() {
        let names = Names::new("shop");
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
            assert_eq!(names.read(key.as_bytes()), None, "{key}");
        }
        assert_eq!(names.read(b"{shop}:alarm:1:\xff"), None);
    }
}
