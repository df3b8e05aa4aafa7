//! Looks up a queue's shard count, and changes it to the setting. `shards/mod.rs` explains the
//! words (partition, layout, closed) and the steps of a change.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Clock, Entropy, Error, ErrorKind, QueueName, Result};
use futures_util::future::try_join_all;
use redis::Value;

use crate::keys::Partition;
use crate::reply::{self, Refusal};
use crate::script::Call;
use crate::shards::layout::Layout;
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

const MAX_ATTEMPTS: u32 = 50;

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    clock: &'a dyn Clock,
    entropy: &'a Entropy,
    made: u32,
    /// The longest pause before the next attempt.
    pause: Duration,
}

impl Attempts<'_> {
    /// Errors: `Unavailable` after `MAX_ATTEMPTS`.
    pub(crate) async fn next(&mut self) -> Result<()> {
        self.made += 1;
        if self.made > MAX_ATTEMPTS {
            let what = "the number of shards of a queue keeps changing";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .remedy("give the queue the same number of `shards` in every process"));
        }
        // The second attempt follows at once because the partitions were just looked up. A later
        // one means that other processes are changing the count, too. Random pauses keep them out
        // of step.
        if self.made > 2 {
            self.clock.sleep(self.pause.mul_f64(0.5 + self.entropy.fraction() / 2.0)).await;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
        Ok(())
    }
}

/// Repeats a call while it gives `Ok(None)`, because a partition is closed.
macro_rules! retry_if_closed {
    ($backend:expr, $call:expr) => {{
        let mut attempts = $backend.attempts();
        loop {
            let answer = match attempts.next().await {
                Ok(()) => $call.await,
                Err(error) => Err(error),
            };
            if let Some(answer) = answer.transpose() {
                break answer;
            }
        }
    }};
}
pub(crate) use retry_if_closed;

#[derive(Clone, Copy)]
enum Reason<'a> {
    /// This connection has not looked the queue up.
    Unknown,
    /// This partition refused a call because it is closed.
    Refused(&'a Arc<Partition>),
    /// The queue must get this shard count before a call stores jobs.
    Change(u16),
    /// The server has lost this shard count, and it must be stored again.
    Restore(u16),
}

impl Reason<'_> {
    /// Whether the cached partitions, perhaps looked up by another call meanwhile, are enough.
    fn is_met_by(self, cached: &QueuePartitions) -> bool {
        match self {
            Self::Unknown => true,
            Self::Refused(partition) => !cached.contains(partition),
            Self::Change(shards) => shards == cached.shards(),
            Self::Restore(_) => false,
        }
    }

    fn wanted_shards(self) -> Option<u16> {
        match self {
            Self::Change(shards) | Self::Restore(shards) => Some(shards),
            Self::Unknown | Self::Refused(_) => None,
        }
    }
}

impl RedisBackend {
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        let (clock, entropy) = (&**self.link.clock(), &*self.entropy);
        Attempts { clock, entropy, made: 0, pause: FIRST_PAUSE }
    }

    /// Uses the stored count, regardless of the settings.
    /// Errors: `Incompatible` if the stored shard count cannot be read.
    pub(crate) async fn partitions_of(&self, queue: &QueueName) -> Result<Arc<QueuePartitions>> {
        if let Some(cached) = self.partitions.cached(queue, self.link.connections()) {
            return Ok(cached);
        }
        if self.shard_settings.for_queue(queue).is_none() {
            // This guess saves a call. If the queue has shards, its unsharded partition is closed
            // and refuses the call, and `run_on` then looks up the shard count.
            return Ok(self.partitions.set(queue, 1));
        }
        // Boxed because it is rare: the future of every call stays small.
        Box::pin(self.resolve(queue, Reason::Unknown)).await
    }

    /// First changes the shard count if the settings differ.
    /// Errors: `Config` if the count cannot change: the queue holds jobs or pinned ids or is
    /// paused, or another process has changed it since this one did.
    pub(crate) async fn partitions_to_fill(
        &self,
        queue: &QueueName,
    ) -> Result<Arc<QueuePartitions>> {
        let partitions = self.partitions_of(queue).await?;
        match self.shard_settings.for_queue(queue) {
            Some(shards) if shards != partitions.shards() => {
                Box::pin(self.resolve(queue, Reason::Change(shards))).await
            }
            _ => Ok(partitions),
        }
    }

    /// `None` if the partition is closed: the queue's partitions were looked up again, and the
    /// caller must repeat the call on them.
    pub(crate) async fn run_on(
        &self,
        partition: &Arc<Partition>,
        call: Call<'_>,
    ) -> Result<Option<Value>> {
        let answer = call.run(&self.link).await?;
        if Refusal::read(&answer) == Some(Refusal::Closed) {
            self.reload(partition).await?;
            return Ok(None);
        }
        Ok(Some(answer))
    }

    pub(crate) async fn reload(&self, closed: &Arc<Partition>) -> Result<()> {
        Box::pin(self.resolve(&closed.queue, Reason::Refused(closed))).await.map(drop)
    }

    async fn resolve(&self, queue: &QueueName, reason: Reason<'_>) -> Result<Arc<QueuePartitions>> {
        // Calls that were refused together look up the partitions once.
        let _guard = self.resolving.lock().await;
        if let Some(cached) = self.partitions.cached(queue, self.link.connections())
            && reason.is_met_by(&cached)
        {
            return Ok(cached);
        }
        let mut attempts = self.attempts();
        loop {
            attempts.next().await?;
            let stored = self.stored_layout(queue).await?;
            let shards = reason.wanted_shards().unwrap_or(stored.shards);
            let is_resolved = match reason {
                _ if shards != stored.shards => {
                    // Two processes with different settings would change the count in turns, and a
                    // lost count is stored again only if no other was stored since. Change 0 means
                    // that the server's data were deleted.
                    let must_keep = matches!(reason, Reason::Restore(_))
                        || self.partitions.is_established(queue);
                    if must_keep && stored.change > 0 {
                        return Err(shards_mismatch(queue, stored.shards, shards));
                    }
                    self.resize(queue, stored, shards).await?
                }
                // An incomplete change has closed a partition of the stored count.
                Reason::Refused(closed) if closed.shards == shards => {
                    self.reopen(queue, stored).await?
                }
                _ => true,
            };
            if is_resolved {
                if self.shard_settings.for_queue(queue) == Some(shards) {
                    self.partitions.establish(queue);
                }
                return Ok(self.partitions.set(queue, shards));
            }
        }
    }

    /// Stores a missing queue name and shard count when a partition receives its first jobs: it is
    /// new, or `FLUSHALL` deleted the data.
    /// Errors: `Config` if processes that do not know this count have stored jobs.
    pub(crate) async fn restore_queue(&self, partition: &Partition) -> Result<()> {
        self.register_again(&partition.queue).await?;
        if partition.shards == 1 {
            return Ok(());
        }
        let restored = self.resolve(&partition.queue, Reason::Restore(partition.shards)).await;
        if restored.is_err() {
            self.partitions.forget(&partition.queue);
        }
        restored.map(drop)
    }

    /// `false` if the stored layout is no longer `stored`.
    ///
    /// # Errors
    /// `Config` if the queue holds jobs or pinned ids, is paused, or has limits in a cluster.
    async fn resize(&self, queue: &QueueName, stored: Layout, shards: u16) -> Result<bool> {
        let old = self.partitions.make(queue, stored.shards);
        let new = self.partitions.make(queue, shards);
        let next = stored.next(shards);
        let change = next.change.to_string();
        let place = if self.link.server().is_cluster() { "cluster" } else { "" };
        // Closing disturbs the processes that use the queue, so `look` comes first.
        if self.step_all(&old, &["look", "", place]).await? {
            return Err(shards_mismatch(queue, stored.shards, shards));
        }
        if self.step_all(&old, &["close", &change, place]).await? {
            self.reopen(queue, stored).await?;
            return Err(shards_mismatch(queue, stored.shards, shards));
        }
        // No limit changes while the old partitions are closed.
        self.step_all(&new, &["mark"]).await?;
        if !self.commit(queue, stored, next).await? {
            return Ok(false);
        }
        self.step_all(&new, &["open", &change]).await?;
        tracing::info!(%queue, from = stored.shards, to = shards, "Redis: number of shards changed");
        Ok(true)
    }

    /// Opens the partitions of the stored count, and makes unfinished changes fail. `false` if the
    /// stored layout is no longer `stored`.
    async fn reopen(&self, queue: &QueueName, stored: Layout) -> Result<bool> {
        let next = stored.next(stored.shards);
        if !self.commit(queue, stored, next).await? {
            return Ok(false);
        }
        let partitions = self.partitions.make(queue, stored.shards);
        self.step_all(&partitions, &["open", &next.change.to_string()]).await?;
        Ok(true)
    }

    pub(crate) async fn stored_layout(&self, queue: &QueueName) -> Result<Layout> {
        let partition = self.partitions.unsharded(queue);
        let mut call = self.scripts.shards.on([&*partition]);
        call.arg("stored");
        let text = reply::bytes(call.run(&self.link).await?)?;
        let text = String::from_utf8_lossy(&text);
        Layout::parse(&text).ok_or_else(|| {
            Error::new(
                ErrorKind::Incompatible,
                format!("queue {queue} has the shards {text:?}, which this version cannot read"),
            )
            .remedy("use the version that has stored them, or another `prefix`")
        })
    }

    /// Compare and set. Returns whether the stored layout was `expected`.
    async fn commit(&self, queue: &QueueName, expected: Layout, next: Layout) -> Result<bool> {
        let partition = self.partitions.unsharded(queue);
        let mut call = self.scripts.shards.on([&*partition]);
        call.arg("commit").arg(expected.to_string()).arg(next.to_string());
        Ok(reply::number(&call.run(&self.link).await?)? == 1)
    }

    /// Runs one step of `scripts/shards.lua` on each partition. Returns whether any partition is in
    /// use: it holds jobs or pinned ids, is paused, or has limits in a cluster.
    async fn step_all(&self, partitions: &QueuePartitions, step: &[&str]) -> Result<bool> {
        let steps = partitions.all.iter().map(|partition| async {
            let mut call = self.scripts.shards.on([&**partition]);
            for argument in step {
                call.arg(*argument);
            }
            Ok::<_, Error>(reply::number(&call.run(&self.link).await?)? == 1)
        });
        Ok(try_join_all(steps).await?.contains(&true))
    }
}

pub(crate) fn shards_mismatch(queue: &QueueName, stored: u16, setting: u16) -> Error {
    let count = |shards| match shards {
        1 => "1 shard".to_owned(),
        shards => format!("{shards} shards"),
    };
    Error::new(
        ErrorKind::Config,
        format!(
            "queue {queue} has {} and cannot be used with {}: the number is fixed while the queue \
             holds jobs, the id of an ended job is pinned (`remember`), the queue is paused, or it \
             has limits in a cluster",
            count(stored),
            count(setting)
        ),
    )
    .remedy(format!(
        "set its `shards` to {stored} in every process; for another number use a new `prefix`, and \
         list the old one under `[[drain]]`, or resume the queue, remove its limits, wait until it is empty, dead jobs \
         included, and the last pin has ended, and restart all processes with the new number"
    ))
}
