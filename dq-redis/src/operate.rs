//! Operations on queues: replay, remove, pause, resume and purge. `flow.rs` sets limits.

use dq_core::{Due, ErrorKind, JobId, OperateReport, Operation, QueueName, Result};

use crate::args::due_arg;
use crate::batch::CHUNK;
use crate::error::unsupported;
use crate::handle;
use crate::keys::Partition;
use crate::reply;
use crate::resize::retry_if_closed;
use crate::script::{Call, Script};
use crate::store::RedisBackend;

/// A purge ends after this many jobs and reports that there may be more.
const PURGE_STEP: u64 = 1_000;

impl RedisBackend {
    pub(crate) async fn run_operation(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let affected = match operation {
            Operation::Replay { queue, jobs, due } => {
                self.change_dead(queue, "replay", due, jobs).await
            }
            Operation::Remove { queue, jobs } => {
                self.change_dead(queue, "remove", Due::NOW, jobs).await
            }
            Operation::Pause { queue } => self.pause(queue, true).await,
            Operation::Resume { queue } => self.pause(queue, false).await,
            Operation::Purge { queue } => return self.purge(queue).await,
            Operation::DeclareFlow { queue, flow } => self.declare_flow(queue, flow).await,
            Operation::OverrideFlow { queue, flow } => self.override_flow(queue, flow).await,
            operation => Err(unsupported(format!("the operation {operation:?}"))),
        };
        affected.map(OperateReport::new)
    }

    /// `change` is `replay` or `remove`; `due` is for replayed jobs.
    async fn change_dead(
        &self,
        queue: &QueueName,
        change: &'static str,
        due: Due,
        jobs: &[JobId],
    ) -> Result<u64> {
        let ids: Vec<_> = jobs.iter().map(|job| handle::handle_and_tail(*job)).collect();
        let (mut changed, mut shard) = (0, 0);
        while shard < self.partitions_of(queue).await?.shards() {
            for chunk in ids.chunks(CHUNK) {
                let add = |partition: &Partition, call: &mut Call<'_>| {
                    call.arg(&partition.channel).arg(change).arg(due_arg(due));
                    call.arg(self.history_args(partition));
                    for id in chunk {
                        call.arg(&id[..]);
                    }
                };
                changed += self.run_on_shard(queue, shard, &self.scripts.dead, add).await?;
            }
            shard += 1;
        }
        Ok(changed)
    }

    /// Returns 1 if that changed any shard, else 0.
    async fn pause(&self, queue: &QueueName, pause: bool) -> Result<u64> {
        self.register([queue]).await?;
        if pause {
            // The shard count is fixed while the queue is paused, so an empty queue gets its
            // setting now. A queue that cannot be changed is paused as it is.
            match self.partitions_to_fill(queue).await {
                Err(error) if error.kind() != ErrorKind::Config => return Err(error),
                _ => {}
            }
        }
        let (mut changed, mut shard) = (0, 0);
        while shard < self.partitions_of(queue).await?.shards() {
            let add = |partition: &Partition, call: &mut Call<'_>| {
                call.arg(&partition.channel).arg(u8::from(pause));
            };
            let paused = self.run_on_shard(queue, shard, &self.scripts.pause, add).await?;
            changed = paused.max(changed);
            shard += 1;
        }
        Ok(changed)
    }

    async fn purge(&self, queue: &QueueName) -> Result<OperateReport> {
        let (mut report, mut shard) = (OperateReport::default(), 0);
        while shard < self.partitions_of(queue).await?.shards() {
            report.more = report.affected >= PURGE_STEP;
            if report.more {
                break;
            }
            let add = |partition: &Partition, call: &mut Call<'_>| {
                call.arg(self.history_args(partition)).arg(CHUNK);
            };
            match self.run_on_shard(queue, shard, &self.scripts.purge, add).await? {
                0 => shard += 1,
                count => report.affected += count,
            }
        }
        Ok(report)
    }

    /// Returns how many jobs changed: 0 if the queue no longer has this shard, which then had no
    /// jobs.
    pub(crate) async fn run_on_shard(
        &self,
        queue: &QueueName,
        shard: u16,
        script: &Script,
        add: impl Fn(&Partition, &mut Call<'_>),
    ) -> Result<u64> {
        retry_if_closed!(self, async {
            let partitions = self.partitions_of(queue).await?;
            let Some(partition) = partitions.all.get(usize::from(shard)) else {
                return Ok(Some(0));
            };
            let mut call = script.on([&**partition]);
            add(partition, &mut call);
            let reply = self.run_on(partition, call).await?;
            reply.map(|reply| reply::count(&reply)).transpose()
        })
    }
}
