//! Looks up the number of shards of a queue, and changes it to the one in the settings while the
//! queue is empty. See `shards/mod.rs` for the terms and the steps of a change.

use std::sync::Arc;

use dq_core::{Error, ErrorKind, QueueName, Result};
use futures_util::future::try_join_all;
use redis::Value;

use crate::error::unexpected;
use crate::keys::Partition;
use crate::reply::{self, Refusal};
use crate::script::Call;
use crate::shards::layout::Layout;
use crate::shards::partitions::QueuePartitions;
use crate::store::Store;

/// Maximum number of attempts of one call while the number of shards of its queue changes.
const MAX_ATTEMPTS: u32 = 50;

/// Counts the attempts of a call that is repeated because its partition was closed.
#[derive(Debug, Default)]
pub(crate) struct ReshardRetries(u32);

impl ReshardRetries {
    /// Counts one attempt; called before each, the first too.
    ///
    /// # Errors
    /// `Unavailable` after `MAX_ATTEMPTS`.
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

impl Store {
    /// The partitions that a queue has, whatever the settings say.
    ///
    /// # Errors
    /// `Incompatible` if the stored number of shards cannot be read; errors of the calls.
    pub(crate) async fn partitions_of(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<Arc<QueuePartitions>> {
        if let Some(cached) = self.partitions.cached(queue, self.link.connections()) {
            return Ok(cached);
        }
        if self.shard_settings.for_queue(queue).is_none() {
            // A guess that saves a call: if the queue has shards, its unsharded partition is closed
            // and refuses the call, and `run_on` looks up the number.
            return Ok(self.partitions.set(queue, 1));
        }
        // Rare, so boxed: the future of every call stays small.
        Box::pin(self.resolve(operation, queue, None, false)).await
    }

    /// The partitions of a queue in which jobs are to be stored. If the settings have another
    /// number of shards for the queue, the number is changed first.
    ///
    /// # Errors
    /// `Config` if the number cannot be changed: the queue holds jobs or is paused, or another
    /// process has changed the number since this one did. Those of [`Self::partitions_of`].
    pub(crate) async fn partitions_to_fill(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<Arc<QueuePartitions>> {
        let partitions = self.partitions_of(operation, queue).await?;
        match self.shard_settings.for_queue(queue) {
            Some(shards) if shards != partitions.shards() => {
                Box::pin(self.resolve(operation, queue, None, true)).await
            }
            Some(_) => {
                self.partitions.establish(queue);
                Ok(partitions)
            }
            None => Ok(partitions),
        }
    }

    /// Runs a call on one partition. `None` if the partition is closed: the partitions of the queue
    /// were looked up again, and the caller repeats the call on those.
    ///
    /// # Errors
    /// Those of [`Self::partitions_of`] and of the call.
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

    /// Looks up the partitions of the queue of a closed partition.
    ///
    /// # Errors
    /// Those of [`Self::partitions_of`].
    pub(crate) async fn reload(
        &self,
        operation: &'static str,
        closed: &Arc<Partition>,
    ) -> Result<()> {
        Box::pin(self.resolve(operation, &closed.queue, Some(closed), false)).await.map(drop)
    }

    /// Reads the stored number of shards; with `change`, makes it the one of the settings. `closed`
    /// is the partition that refused a call, if one did: if it is of the stored number, a change
    /// did not complete, and the partitions are opened again.
    async fn resolve(
        &self,
        operation: &'static str,
        queue: &QueueName,
        closed: Option<&Arc<Partition>>,
        change: bool,
    ) -> Result<Arc<QueuePartitions>> {
        let setting = self.shard_settings.for_queue(queue).filter(|_| change);
        // One at a time, so that calls that were refused together look up the partitions once.
        let _guard = self.resolving.lock().await;
        if let Some(cached) = self.partitions.cached(queue, self.link.connections())
            && closed.is_none_or(|closed| !cached.contains(closed))
            && setting.is_none_or(|shards| shards == cached.shards())
        {
            return Ok(cached);
        }
        let mut retries = ReshardRetries::default();
        loop {
            retries.next(operation)?;
            let stored = self.stored_layout(operation, queue).await?;
            let shards = setting.unwrap_or(stored.shards);
            // `false`: the stored layout has changed since it was read.
            let resolved = if shards != stored.shards {
                // Once in a process: two processes with different settings would change it in
                // turns.
                if self.partitions.is_established(queue) && stored.change > 0 {
                    return Err(self.shards_mismatch(operation, queue, stored.shards, shards));
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

    /// Changes the number of shards of an empty queue. `false` if the stored layout is not `stored`
    /// any more.
    ///
    /// # Errors
    /// `Config` if the queue holds jobs or is paused; errors of the calls.
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
        // First without closing, which disturbs the processes that use the queue.
        if self.step_all(operation, &old, &["look"]).await? {
            return Err(self.shards_mismatch(operation, queue, stored.shards, shards));
        }
        if self.step_all(operation, &old, &["close", &change]).await? {
            self.reopen(operation, queue, stored).await?;
            return Err(self.shards_mismatch(operation, queue, stored.shards, shards));
        }
        if !self.commit(operation, queue, stored, next).await? {
            return Ok(false);
        }
        self.step_all(operation, &new, &["open", &change]).await?;
        tracing::info!(%queue, from = stored.shards, to = shards, "Redis: number of shards changed");
        Ok(true)
    }

    /// Opens the partitions of the stored number, and makes changes that are under way fail.
    /// `false` if the stored layout is not `stored` any more.
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

    /// Reads the stored layout of a queue.
    ///
    /// # Errors
    /// `Incompatible` if it cannot be read by this version; errors of the call.
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

    /// Stores the layout `next` if the stored one is `expected` (compare and set). `false` if it is
    /// not.
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

    /// Makes one step of a change on each partition: `step` is the name of the step and its
    /// arguments, as in `scripts/shards.lua`. Returns whether one of the partitions is in use: it
    /// holds jobs, or is paused.
    async fn step_all(
        &self,
        operation: &'static str,
        partitions: &QueuePartitions,
        step: &[&str],
    ) -> Result<bool> {
        let steps = partitions.all.iter().map(|partition| async {
            let mut call = self.scripts.shards.on([&**partition]);
            for argument in step {
                call.arg(*argument);
            }
            match reply::number(&call.run(&self.link, operation).await?) {
                Some(is_in_use) => Ok(is_in_use == 1),
                None => unexpected(operation),
            }
        });
        Ok(try_join_all(steps).await?.contains(&true))
    }

    /// The error for a queue whose stored number of shards differs from the setting and is fixed.
    pub(crate) fn shards_mismatch(
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
                 holds jobs or is paused",
                count(stored),
                count(setting)
            ),
        )
        .remedy(format!(
            "set its `shards` to {stored} in every process; for another number use a new `prefix`, and \
             list the old one under `[[drain]]`, or resume the queue, wait until it is empty, dead jobs \
             included, and restart all processes with the new number"
        ))
        .operation(operation)
    }
}
