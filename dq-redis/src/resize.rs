//! Looks up a queue's shard count, and changes it to the setting. `shards/mod.rs` explains the
//! terms and steps.

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
/// The pause before the third attempt. It doubles with each attempt, up to `MAX_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// The attempts of a call that is repeated because its partition was closed.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    clock: &'a dyn Clock,
    entropy: &'a Entropy,
    made: u32,
}

impl Attempts<'_> {
    /// Counts an attempt and pauses before it.
    /// Errors: `Unavailable` after `MAX_ATTEMPTS`.
    pub(crate) async fn next(&mut self) -> Result<()> {
        self.made += 1;
        // The second attempt follows at once because the partitions were just looked up. Later
        // attempts mean that other processes are changing the shard count, too. Random pauses break
        // the lockstep.
        if let Some(doublings) = self.made.checked_sub(3) {
            let longest = FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(MAX_PAUSE);
            self.clock.sleep(longest.mul_f64(0.5 + self.entropy.fraction() / 2.0)).await;
        }
        if self.made <= MAX_ATTEMPTS {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the number of shards of a queue keeps changing")
            .remedy("give the queue the same number of `shards` in every process"))
    }
}

impl RedisBackend {
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        Attempts { clock: &**self.link.clock(), entropy: &self.entropy, made: 0 }
    }

    /// Returns a queue's stored partitions, regardless of the settings.
    /// Errors: `Incompatible` if the stored shard count cannot be read; errors of the calls.
    pub(crate) async fn partitions_of(&self, queue: &QueueName) -> Result<Arc<QueuePartitions>> {
        if let Some(cached) = self.partitions.cached(queue, self.link.connections()) {
            return Ok(cached);
        }
        if self.shard_settings.for_queue(queue).is_none() {
            // A guess that saves a call: the unsharded partition of a sharded queue is closed and
            // refuses the call, and `run_on` then looks up the shard count.
            return Ok(self.partitions.set(queue, 1));
        }
        // Boxed because it is rare: the future of every call stays small.
        Box::pin(self.resolve(queue, None, false)).await
    }

    /// Returns the partitions for storing jobs. First changes the shard count if the settings
    /// differ.
    /// Errors: `Config` if the count cannot change: the queue holds jobs or pinned ids or is
    /// paused, or another process has changed it since this one did. The errors of
    /// [`Self::partitions_of`].
    pub(crate) async fn partitions_to_fill(
        &self,
        queue: &QueueName,
    ) -> Result<Arc<QueuePartitions>> {
        let partitions = self.partitions_of(queue).await?;
        match self.shard_settings.for_queue(queue) {
            Some(shards) if shards != partitions.shards() => {
                Box::pin(self.resolve(queue, None, true)).await
            }
            _ => Ok(partitions),
        }
    }

    /// Runs a call on one partition. `None` if the partition is closed: the queue's partitions were
    /// looked up again, and the caller must repeat the call on them.
    /// Errors: The errors of [`Self::partitions_of`] and of the call.
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
        Box::pin(self.resolve(&closed.queue, Some(closed), false)).await.map(drop)
    }

    /// Looks up the partitions. With `change`, sets the stored count to the setting. `closed` is
    /// the partition that refused a call, if any. If it belongs to the stored count, a change did
    /// not complete, and the partitions are opened again.
    async fn resolve(
        &self,
        queue: &QueueName,
        closed: Option<&Arc<Partition>>,
        change: bool,
    ) -> Result<Arc<QueuePartitions>> {
        let setting = self.shard_settings.for_queue(queue).filter(|_| change);
        // One at a time: calls refused together look up the partitions once.
        let _guard = self.resolving.lock().await;
        if let Some(cached) = self.partitions.cached(queue, self.link.connections())
            && closed.is_none_or(|closed| !cached.contains(closed))
            && setting.is_none_or(|shards| shards == cached.shards())
        {
            return Ok(cached);
        }
        let mut attempts = self.attempts();
        loop {
            attempts.next().await?;
            let stored = self.stored_layout(queue).await?;
            let shards = setting.unwrap_or(stored.shards);
            let resolved = if shards != stored.shards {
                // Once per process: two processes with different settings would change it in turns.
                // With change 0 nothing is stored: the server's data were deleted.
                if self.partitions.is_established(queue) && stored.change > 0 {
                    return Err(shards_mismatch(queue, stored.shards, shards));
                }
                self.resize(queue, stored, shards).await?
            } else if closed.is_some_and(|closed| closed.shards == shards) {
                self.reopen(queue, stored).await?
            } else {
                true
            };
            if resolved {
                if self.shard_settings.for_queue(queue) == Some(shards) {
                    self.partitions.establish(queue);
                }
                return Ok(self.partitions.set(queue, shards));
            }
        }
    }

    /// Stores a missing queue name and shard count again. Called when a partition receives its
    /// first jobs: it is new, or `FLUSHALL` deleted the data while this process kept its cache.
    /// Errors: `Config` if another count was stored since, or if processes that do not know this
    /// count have stored jobs; errors of the calls.
    pub(crate) async fn restore_queue(&self, partition: &Partition) -> Result<()> {
        self.register_again(&partition.queue).await?;
        if partition.shards == 1 {
            return Ok(());
        }
        let restored = self.restore_layout(&partition.queue, partition.shards).await;
        if restored.is_err() {
            self.partitions.forget(&partition.queue);
        }
        restored
    }

    async fn restore_layout(&self, queue: &QueueName, shards: u16) -> Result<()> {
        let _guard = self.resolving.lock().await;
        let mut attempts = self.attempts();
        loop {
            attempts.next().await?;
            let stored = self.stored_layout(queue).await?;
            if stored.shards == shards {
                return Ok(());
            }
            if stored != Layout::UNSHARDED {
                return Err(shards_mismatch(queue, stored.shards, shards));
            }
            if self.resize(queue, stored, shards).await? {
                return Ok(());
            }
        }
    }

    /// Changes the shard count of an empty queue. `false` if the stored layout is no longer
    /// `stored`.
    /// Errors: `Config` if the queue holds jobs or pinned ids, or is paused; errors of the calls.
    async fn resize(&self, queue: &QueueName, stored: Layout, shards: u16) -> Result<bool> {
        let old = self.partitions.make(queue, stored.shards);
        let new = self.partitions.make(queue, shards);
        let next = stored.next(shards);
        let change = next.change.to_string();
        // Look first, because closing disturbs the processes that use the queue.
        if self.step_all(&old, &["look"]).await? {
            return Err(shards_mismatch(queue, stored.shards, shards));
        }
        if self.step_all(&old, &["close", &change]).await? {
            self.reopen(queue, stored).await?;
            return Err(shards_mismatch(queue, stored.shards, shards));
        }
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

    /// Stores the layout `next` if the stored one is `expected` (compare and set).
    async fn commit(&self, queue: &QueueName, expected: Layout, next: Layout) -> Result<bool> {
        let partition = self.partitions.unsharded(queue);
        let mut call = self.scripts.shards.on([&*partition]);
        call.arg("commit").arg(expected.to_string()).arg(next.to_string());
        Ok(reply::number(&call.run(&self.link).await?)? == 1)
    }

    /// Runs one step, as in `scripts/shards.lua`, on each partition. Returns whether any partition
    /// is in use: it holds jobs or pinned ids, or is paused.
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

/// The stored shard count is fixed and differs from the setting.
pub(crate) fn shards_mismatch(queue: &QueueName, stored: u16, setting: u16) -> Error {
    let count = |shards| match shards {
        1 => "1 shard".to_owned(),
        shards => format!("{shards} shards"),
    };
    Error::new(
        ErrorKind::Config,
        format!(
            "queue {queue} has {} and cannot be used with {}: the number is fixed while the queue \
             holds jobs, the id of an ended job is pinned (`remember`), or the queue is paused",
            count(stored),
            count(setting)
        ),
    )
    .remedy(format!(
        "set its `shards` to {stored} in every process; for another number use a new `prefix`, and \
         list the old one under `[[drain]]`, or resume the queue, wait until it is empty, dead jobs \
         included, and the last pin has ended, and restart all processes with the new number"
    ))
}

#[cfg(test)]
mod tests {
    use dq_core::{Timestamp, VirtualClock};
    use futures_util::poll;

    use super::*;

    async fn pauses(seed: u64) -> Vec<Duration> {
        let (clock, entropy) = (VirtualClock::new(Timestamp::EPOCH), Entropy::seeded(seed));
        let mut attempts = Attempts { clock: &clock, entropy: &entropy, made: 0 };
        let mut pauses = Vec::new();
        loop {
            let before = clock.now();
            let result = {
                let mut next = Box::pin(attempts.next());
                loop {
                    match poll!(&mut next) {
                        std::task::Poll::Ready(result) => break result,
                        std::task::Poll::Pending => clock.set(clock.next_wakeup().unwrap()),
                    }
                }
            };
            pauses.push(clock.now().since(before));
            if let Err(error) = result {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                return pauses;
            }
        }
    }

    #[tokio::test]
    async fn attempts_are_limited_and_wait_longer_and_longer_by_the_clock() {
        let first = pauses(1).await;
        assert_eq!(first.len(), MAX_ATTEMPTS as usize + 1);
        assert_eq!(first[..2], [Duration::ZERO; 2], "the second attempt follows at once");
        assert!(first[2..].iter().all(|pause| !pause.is_zero() && *pause <= MAX_PAUSE));
        assert!(first[20..].iter().all(|pause| *pause >= MAX_PAUSE / 2), "{first:?}");
        assert!(first[2..5].iter().all(|pause| *pause <= FIRST_PAUSE * 4), "{first:?}");
        assert_ne!(first, pauses(2).await, "the pauses of two processes differ");
    }
}
