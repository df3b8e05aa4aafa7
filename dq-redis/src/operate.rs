//! Operations on queues: replay, remove, pause, resume and purge.

use bytes::Bytes;
use dq_core::{Due, Error, ErrorKind, JobId, Operation, QueueName, Result};
use redis::Value;

use crate::args::due_arg;
use crate::batch::CHUNK;
use crate::error::unexpected;
use crate::handle;
use crate::keys::Partition;
use crate::reply::{self, Reply};
use crate::resize::ReshardRetries;
use crate::script::{Call, Script};
use crate::store::Store;

const OPERATE: &str = "operate";
const REPLAY: &str = "replay";
const REMOVE: &str = "remove";

/// The dead jobs of a partition that one call changes.
#[derive(Clone, Copy)]
enum DeadJobs<'a> {
    /// A chunk of all: those after this one, given by time of death and handle; the first ones if
    /// `None`.
    After(Option<&'a (i64, Bytes)>),
    /// Those with these ids, as handle and tail.
    WithIds(&'a [[u8; 16]]),
}

impl DeadJobs<'_> {
    /// Adds the arguments, as in `scripts/dead.lua`.
    fn add_to(self, call: &mut Call<'_>) {
        match self {
            Self::After(None) => {
                call.arg("a");
            }
            Self::After(Some((at, handle))) => {
                call.arg("a").arg(*at).arg(&handle[..]);
            }
            Self::WithIds(ids) => {
                call.arg("n");
                for id in ids {
                    call.arg(&id[..]);
                }
            }
        }
    }
}

/// A change of dead jobs.
#[derive(Clone, Copy)]
struct DeadChange {
    /// `replay` or `remove`.
    name: &'static str,
    /// When replayed jobs are due.
    due: Due,
}

/// The result of one call that changes dead jobs.
struct Changed {
    jobs: u64,
    /// Time of death and handle of the last job read; `None` if there are no more.
    next: Option<(i64, Bytes)>,
}

impl Store {
    /// Carries out an operation. Returns the number of jobs changed; for pause and resume 1, or 0
    /// if the queue was paused or resumed already.
    ///
    /// # Errors
    /// `Unsupported` for an operation that a later version of dq-core has added; errors of the
    /// calls, after which some jobs may have been changed.
    pub(crate) async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        let change = |name, due| DeadChange { name, due };
        match operation {
            Operation::Replay { queue, jobs, due } => {
                self.change_dead(queue, change(REPLAY, due), jobs).await
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead(queue, change(REMOVE, Due::NOW), jobs).await
            }
            Operation::Pause { queue } => self.pause(queue, true).await,
            Operation::Resume { queue } => self.pause(queue, false).await,
            Operation::Purge { queue } => self.purge(queue).await,
            operation => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the Redis backends do not know the operation {operation:?}"),
            )
            .operation(OPERATE)),
        }
    }

    /// Changes these dead jobs of a queue, or all, shard by shard.
    async fn change_dead(
        &self,
        queue: &QueueName,
        change: DeadChange,
        jobs: Option<&[JobId]>,
    ) -> Result<u64> {
        let ids: Option<Vec<_>> =
            jobs.map(|jobs| jobs.iter().map(|job| handle::handle_and_tail(*job)).collect());
        let (mut changed, mut shard) = (0, 0);
        while shard < self.partitions_of(change.name, queue).await?.shards() {
            match &ids {
                None => changed += self.change_all_dead(queue, shard, change).await?,
                Some(ids) => {
                    for chunk in ids.chunks(CHUNK) {
                        let chunk = DeadJobs::WithIds(chunk);
                        changed += self.change_dead_chunk(queue, shard, change, chunk).await?.jobs;
                    }
                }
            }
            shard += 1;
        }
        Ok(changed)
    }

    /// Changes all dead jobs of one shard.
    async fn change_all_dead(
        &self,
        queue: &QueueName,
        shard: u16,
        change: DeadChange,
    ) -> Result<u64> {
        let (mut jobs, mut after) = (0, None);
        loop {
            let chunk = DeadJobs::After(after.as_ref());
            let changed = self.change_dead_chunk(queue, shard, change, chunk).await?;
            jobs += changed.jobs;
            if changed.next.is_none() {
                return Ok(jobs);
            }
            after = changed.next;
        }
    }

    /// Makes one call on one shard.
    async fn change_dead_chunk(
        &self,
        queue: &QueueName,
        shard: u16,
        change: DeadChange,
        jobs: DeadJobs<'_>,
    ) -> Result<Changed> {
        let add = |partition: &Partition, call: &mut Call<'_>| {
            call.arg(&partition.channel).arg(change.name).arg(due_arg(change.due)).arg(CHUNK);
            jobs.add_to(call);
        };
        let answer = self.run_on_shard(change.name, queue, shard, &self.scripts.dead, add).await?;
        let Some(answer) = answer else { return Ok(Changed { jobs: 0, next: None }) };
        match read_changed(answer) {
            Some(changed) => Ok(changed),
            None => unexpected(change.name),
        }
    }

    /// Pauses or resumes all shards of a queue. Returns 1 if that changed any, else 0.
    async fn pause(&self, queue: &QueueName, pause: bool) -> Result<u64> {
        self.register(OPERATE, [queue]).await?;
        if pause {
            // The number of shards is fixed while the queue is paused, so an empty queue gets the
            // number of the settings now. A queue that cannot be changed is paused as it is.
            match self.partitions_to_fill(OPERATE, queue).await {
                Err(error) if error.kind() != ErrorKind::Config => return Err(error),
                _ => {}
            }
        }
        let (mut changed, mut shard) = (0, 0);
        while shard < self.partitions_of(OPERATE, queue).await?.shards() {
            let add = |partition: &Partition, call: &mut Call<'_>| {
                call.arg(&partition.channel).arg(u8::from(pause));
            };
            changed =
                changed.max(self.run_for_count(queue, shard, &self.scripts.pause, add).await?);
            shard += 1;
        }
        Ok(changed)
    }

    /// Removes all waiting and dead jobs of a queue, and returns their number.
    async fn purge(&self, queue: &QueueName) -> Result<u64> {
        let (mut removed, mut shard) = (0, 0);
        while shard < self.partitions_of(OPERATE, queue).await?.shards() {
            let add = |_: &Partition, call: &mut Call<'_>| {
                call.arg(CHUNK);
            };
            match self.run_for_count(queue, shard, &self.scripts.purge, add).await? {
                0 => shard += 1,
                count => removed += count,
            }
        }
        Ok(removed)
    }

    /// Runs a script that returns a number on one shard. 0 if the queue does not have this shard
    /// any more.
    async fn run_for_count(
        &self,
        queue: &QueueName,
        shard: u16,
        script: &Script,
        add: impl Fn(&Partition, &mut Call<'_>),
    ) -> Result<u64> {
        let answer = self.run_on_shard(OPERATE, queue, shard, script, add).await?;
        let Some(answer) = answer else { return Ok(0) };
        match reply::number(&answer).and_then(|number| u64::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => unexpected(OPERATE),
        }
    }

    /// Runs a script on one shard, with the arguments that `add` adds. `None` if the queue does not
    /// have this shard any more: then it had no jobs, since the number of shards changes only in
    /// empty queues.
    async fn run_on_shard(
        &self,
        operation: &'static str,
        queue: &QueueName,
        shard: u16,
        script: &Script,
        add: impl Fn(&Partition, &mut Call<'_>),
    ) -> Result<Option<Value>> {
        let mut retries = ReshardRetries::default();
        loop {
            retries.next(operation)?;
            let partitions = self.partitions_of(operation, queue).await?;
            let Some(partition) = partitions.all.get(usize::from(shard)) else {
                return Ok(None);
            };
            let mut call = script.on([&**partition]);
            add(partition, &mut call);
            if let Some(answer) = self.run_on(operation, partition, call).await? {
                return Ok(Some(answer));
            }
        }
    }
}

/// Reads the reply of `scripts/dead.lua`. `None` if it is malformed.
fn read_changed(answer: Value) -> Option<Changed> {
    let mut reply = Reply::new(answer)?;
    let jobs = u64::try_from(reply.number()?).ok()?;
    let next = if reply.is_empty() { None } else { Some((reply.number()?, reply.bytes()?)) };
    Some(Changed { jobs, next })
}
