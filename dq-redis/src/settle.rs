//! Settles leases with verdicts.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::{
    Claimed, DeadKind, DeadReason, Due, Job, JobId, QueueName, Result, Settled, Settlement,
    Timestamp, Verdict, async_trait,
};
use redis::Value;

use crate::args::due_arg;
use crate::batch::{Chunk, Item, JOB_BYTES, read_letters};
use crate::error::unsupported;
use crate::handle::{self, HANDLE_BYTES};
use crate::keys::Partition;
use crate::record;
use crate::script::{Call, Script, Scripts};
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

/// No runner gets this leased job, because its record or payload cannot be decoded.
#[derive(Debug)]
pub(crate) struct UndecodableJob {
    pub(crate) job: Job,
    pub(crate) shard: u16,
    pub(crate) token: u64,
}

impl RedisBackend {
    pub(crate) async fn settle_leases(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let answers = self.run_batch(settlements).await?;
        // Lost leases have ended, too.
        self.leases.remove(settlements.iter().map(|settlement| &settlement.lease));
        // Only a queue's latest time and longest delay count, and each call visits all shards.
        let mut closed: HashMap<_, Due> = HashMap::new();
        for (settlement, answer) in settlements.iter().zip(&answers) {
            if let (Verdict::Throttle(due), Settled::Accepted) = (&settlement.verdict, answer) {
                let is_delay = matches!(due, Due::After(_));
                let latest = closed.entry((&settlement.lease.queue, is_delay)).or_insert(*due);
                if due.resolve(Timestamp::EPOCH) > latest.resolve(Timestamp::EPOCH) {
                    *latest = *due;
                }
            }
        }
        for ((queue, _), due) in closed {
            if let Err(error) = self.close_shards(queue, due).await {
                tracing::warn!(%error, %queue, "Redis: only one shard of the queue is throttled");
            }
        }
        Ok(answers)
    }

    /// Marks an undecodable leased job dead, so that operators see it, and reports it in its claim.
    /// A failure is logged: the lease expires, and the job's next claim tries again.
    pub(crate) async fn quarantine(
        &self,
        undecodable: UndecodableJob,
        message: &str,
        claimed: &mut Claimed,
    ) {
        let UndecodableJob { job, shard, token } = undecodable;
        let reason = DeadReason::new(DeadKind::Undecodable, message);
        let end = async {
            let ending = LeaseEnding::new(job.id, token, &Verdict::dead(reason.clone()))?;
            let partitions = self.partitions_of(&job.queue).await?;
            match partitions.all.get(usize::from(shard)) {
                Some(partition) => self.end_lease(partition, ending).await,
                None => Ok(()),
            }
        };
        match end.await {
            Ok(()) => claimed.quarantined.push((job, reason)),
            Err(error) => tracing::warn!(%error, queue = %job.queue,
                "Redis: a job that cannot be decoded could not be made dead yet"),
        }
    }

    /// Does nothing if the partition is closed.
    async fn end_lease(&self, partition: &Arc<Partition>, ending: LeaseEnding) -> Result<()> {
        let mut call = self.scripts.settle.on([&**partition]);
        add_endings(&mut call, partition, self.history_args(partition), &[ending]);
        self.run_on(partition, call).await.map(drop)
    }
}

fn add_endings(
    call: &mut Call<'_>,
    partition: &Partition,
    history: (u32, u64),
    endings: &[LeaseEnding],
) {
    let letters: Vec<u8> = endings.iter().map(|ending| ending.letter).collect();
    call.arg(&partition.channel).arg(letters).arg(history);
    for ending in endings {
        call.arg(&ending.handle[..]);
    }
    for ending in endings {
        call.arg(&ending.token.to_be_bytes()[..]);
    }
    for detail in endings.iter().flat_map(|ending| &ending.details) {
        call.arg(&detail[..]);
    }
}

#[async_trait]
impl Item for Settlement {
    type Answer = Settled;

    fn queue(&self) -> &QueueName {
        &self.lease.queue
    }

    fn size_bytes(&self) -> usize {
        match &self.verdict {
            Verdict::Again { payload, .. } => JOB_BYTES + payload.len(),
            _ => 0,
        }
    }

    fn shards(&self, partitions: &QueuePartitions, leases: &LeaseShards) -> (u16, Vec<u16>) {
        leases.candidates(&self.lease, partitions)
    }

    fn is_absent(answer: &Settled) -> bool {
        *answer == Settled::LostLease
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.settle
    }

    fn add_arguments(
        backend: &RedisBackend,
        chunk: &Chunk<'_, Self>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        let ending = |settlement: &&Settlement| {
            let lease = &settlement.lease;
            LeaseEnding::new(lease.job, lease.token.0, &settlement.verdict)
        };
        let endings = chunk.items.iter().map(ending).collect::<Result<Vec<_>>>()?;
        add_endings(call, &chunk.partition, backend.history_args(&chunk.partition), &endings);
        Ok(())
    }

    async fn read(_: &RedisBackend, reply: Value, chunk: &Chunk<'_, Self>) -> Result<Vec<Settled>> {
        read_letters(reply, chunk, |letter| match letter {
            b'1' => Settled::Accepted,
            _ => Settled::LostLease,
        })
    }
}

struct LeaseEnding {
    handle: [u8; HANDLE_BYTES],
    token: u64,
    letter: u8,
    details: Vec<Vec<u8>>,
}

impl LeaseEnding {
    /// Errors: `Unsupported` for a verdict from a later dq-core.
    fn new(job: JobId, token: u64, verdict: &Verdict) -> Result<Self> {
        let due_at = |due: &Due| due_arg(*due).into_bytes();
        let (letter, details) = match verdict {
            Verdict::Done => (b'D', Vec::new()),
            Verdict::Skip { reason } => (b'S', vec![reason.clone().into_bytes()]),
            Verdict::Retry { due, error } => (b'R', vec![due_at(due), error.clone().into_bytes()]),
            Verdict::Again { due, payload } => (b'G', vec![due_at(due), payload.to_vec()]),
            Verdict::Snooze(due) => (b'Z', vec![due_at(due)]),
            Verdict::Throttle(due) => (b'T', vec![due_at(due)]),
            Verdict::Release { started: false } => (b'U', Vec::new()),
            Verdict::Release { started: true } => (b'B', Vec::new()),
            Verdict::Dead { reason, failed } => {
                let failed = if *failed { b'1' } else { b'0' };
                (b'X', vec![vec![failed], record::encode_reason(reason)])
            }
            verdict => return Err(unsupported(format!("the verdict {verdict:?}"))),
        };
        Ok(Self { handle: handle::handle(job), token, letter, details })
    }
}
