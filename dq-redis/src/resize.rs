//! The number of shards of a queue: looked up, changed while the queue is empty, and refused if it
//! differs from the settings. See `shards/mod.rs` for the steps of a change.

use std::sync::Arc;

use dq_core::{Error, ErrorKind, QueueName, Result};
use futures_util::future::try_join_all;
use redis::Value;

use crate::error::unexpected;
use crate::keys::Partition;
use crate::reply::{self, Refusal, Reply};
use crate::script::Call;
use crate::shards::layout::Layout;
use crate::shards::partitions::QueuePartitions;
use crate::store::Store;

/// Attempts of one call while the number of shards of its queue changes.
const MAX_ATTEMPTS: u32 = 50;

/// Bounds the repetitions of a call.
#[derive(Debug, Default)]
pub(crate) struct Attempts(u32);

impl Attempts {
    /// Counts one attempt.
    ///
    /// # Errors
    /// `Unavailable` after too many.
    pub(crate) fn next(&mut self, operation: &'static str) -> Result<()> {
        self.0 += 1;
        if self.0 <= MAX_ATTEMPTS {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the number of shards of a queue keeps changing")
            .remedy("give the queue the same number of `shards` in every process")
            .operation(operation))
    }
}

/// The state of one partition.
struct Inspected {
    holds_jobs: bool,
    paused: bool,
}

impl Store {
    /// The partitions of a queue. The first use of a queue with a number of shards in the settings gives
    /// it that number.
    ///
    /// # Errors
    /// `Config` if the queue holds jobs and has another number of shards than in the settings.
    pub(crate) async fn partitions_of(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<Arc<QueuePartitions>> {
        if let Some(known) = self.partitions.known(queue, self.link.connections()) {
            return Ok(known);
        }
        if self.shard_settings.of(queue).is_none() {
            // If the queue has shards, this partition is closed, and refuses the call.
            return Ok(self.partitions.set(queue, 1));
        }
        // Rare, so boxed: the future of every call stays small.
        Box::pin(self.resolve(operation, queue, None)).await
    }

    /// Runs a call on one partition. `None` if the partition is closed: the partitions of the queue have
    /// been looked up again, and the call is to be made on those.
    ///
    /// # Errors
    /// As [`Self::partitions_of`], and those of the call.
    pub(crate) async fn run_on(
        &self,
        operation: &'static str,
        partition: &Arc<Partition>,
        call: Call<'_>,
    ) -> Result<Option<Value>> {
        let answer = call.run(&self.link, operation).await?;
        if Refusal::read(&answer) == Some(Refusal::Closed) {
            self.reload(operation, partition).await?;
            return Ok(None);
        }
        Ok(Some(answer))
    }

    /// Looks up the partitions of a queue again, since this one is closed.
    pub(crate) async fn reload(
        &self,
        operation: &'static str,
        closed: &Arc<Partition>,
    ) -> Result<()> {
        Box::pin(self.resolve(operation, &closed.queue, Some(closed))).await.map(drop)
    }

    async fn resolve(
        &self,
        operation: &'static str,
        queue: &QueueName,
        closed: Option<&Arc<Partition>>,
    ) -> Result<Arc<QueuePartitions>> {
        // One at a time, so that calls that were refused together look up the partitions once.
        let _turn = self.resolving.lock().await;
        if let Some(known) = self.partitions.known(queue, self.link.connections())
            && closed.is_none_or(|closed| !known.contains(closed))
        {
            return Ok(known);
        }
        let mut attempts = Attempts::default();
        loop {
            attempts.next(operation)?;
            let stored = self.stored_layout(operation, queue).await?;
            let setting = self.shard_settings.of(queue);
            let shards = setting.unwrap_or(stored.shards);
            let resolved = if shards != stored.shards {
                // Only once in a process: two processes with different settings must not take turns.
                if self.partitions.is_established(queue) && stored.change > 0 {
                    return Err(self.other_number(operation, queue, stored.shards, shards));
                }
                self.resize(operation, queue, stored, shards).await?
            } else if closed.is_some_and(|closed| closed.shards == shards) {
                self.reopen(operation, queue, stored).await?
            } else {
                true
            };
            if resolved {
                if setting.is_some() {
                    self.partitions.establish(queue);
                }
                return Ok(self.partitions.set(queue, shards));
            }
        }
    }

    /// Changes the number of shards of an empty queue. `false` if the stored layout has changed.
    async fn resize(
        &self,
        operation: &'static str,
        queue: &QueueName,
        stored: Layout,
        shards: u16,
    ) -> Result<bool> {
        let old = self.partitions.make(queue, stored.shards);
        let new = self.partitions.make(queue, shards);
        let next = stored.next(shards);
        let change = next.change.to_string();
        // Without closing anything, since that disturbs the processes that use the queue.
        let inspected = self.step_all(operation, &old, &["look"]).await?;
        if inspected.iter().any(|partition| partition.holds_jobs) {
            return Err(self.other_number(operation, queue, stored.shards, shards));
        }
        let closed = self.step_all(operation, &old, &["close", &change]).await?;
        if closed.iter().any(|partition| partition.holds_jobs) {
            self.reopen(operation, queue, stored).await?;
            return Err(self.other_number(operation, queue, stored.shards, shards));
        }
        let paused = if closed.iter().any(|partition| partition.paused) { "1" } else { "0" };
        self.step_all(operation, &new, &["pause", paused]).await?;
        if !self.commit(operation, queue, stored, next).await? {
            return Ok(false);
        }
        self.step_all(operation, &new, &["open", &change]).await?;
        tracing::info!(%queue, from = stored.shards, to = shards, "Redis: number of shards changed");
        Ok(true)
    }

    /// Opens the partitions of the stored number, and makes changes fail that are under way. `false` if
    /// the stored layout has changed.
    async fn reopen(
        &self,
        operation: &'static str,
        queue: &QueueName,
        stored: Layout,
    ) -> Result<bool> {
        let next = stored.next(stored.shards);
        if !self.commit(operation, queue, stored, next).await? {
            return Ok(false);
        }
        let partitions = self.partitions.make(queue, stored.shards);
        self.step_all(operation, &partitions, &["open", &next.change.to_string()]).await?;
        Ok(true)
    }

    pub(crate) async fn stored_layout(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<Layout> {
        let partition = self.partitions.unsharded(queue);
        let mut call = self.scripts.shards.on([&*partition]);
        call.arg("stored");
        let Some(text) = reply::bytes(call.run(&self.link, operation).await?) else {
            return unexpected(operation);
        };
        let text = String::from_utf8_lossy(&text);
        Layout::parse(&text).ok_or_else(|| {
            Error::new(
                ErrorKind::Incompatible,
                format!("queue {queue} has the shards {text:?}, which this version cannot read"),
            )
            .remedy("use the version that has stored them, or another `prefix`")
            .operation(operation)
        })
    }

    /// Stores a layout if the stored one is the expected one. `false` if it is not.
    async fn commit(
        &self,
        operation: &'static str,
        queue: &QueueName,
        expected: Layout,
        next: Layout,
    ) -> Result<bool> {
        let partition = self.partitions.unsharded(queue);
        let mut call = self.scripts.shards.on([&*partition]);
        call.arg("commit").arg(expected.to_string()).arg(next.to_string());
        match reply::number(&call.run(&self.link, operation).await?) {
            Some(stored) => Ok(stored == 1),
            None => unexpected(operation),
        }
    }

    /// Makes one step of a change on each partition.
    async fn step_all(
        &self,
        operation: &'static str,
        partitions: &QueuePartitions,
        step: &[&str],
    ) -> Result<Vec<Inspected>> {
        let steps = partitions.all.iter().map(|partition| async {
            let mut call = self.scripts.shards.on([&**partition]);
            for argument in step {
                call.arg(*argument);
            }
            let answer = call.run(&self.link, operation).await?;
            let read = |answer| {
                let mut reply = Reply::new(answer)?;
                Some(Inspected { holds_jobs: reply.number()? == 1, paused: reply.number()? == 1 })
            };
            match read(answer) {
                Some(inspected) => Ok(inspected),
                None => unexpected(operation),
            }
        });
        try_join_all(steps).await
    }

    fn other_number(
        &self,
        operation: &'static str,
        queue: &QueueName,
        stored: u16,
        setting: u16,
    ) -> Error {
        let count = |shards| match shards {
            1 => "1 shard".to_owned(),
            shards => format!("{shards} shards"),
        };
        Error::new(
            ErrorKind::Config,
            format!(
                "queue {queue} has {} and cannot be used with {}: the number is fixed while the queue \
                 holds jobs",
                count(stored),
                count(setting)
            ),
        )
        .remedy(format!(
            "set its `shards` to {stored} in every process; for another number use a new `prefix`, and \
             list the old one under `[[drain]]`, or wait until the queue is empty, dead jobs included, \
             and restart all processes with the new number"
        ))
        .operation(operation)
    }
}
