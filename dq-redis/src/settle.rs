//! Settles leases with verdicts.

use std::sync::Arc;

use dq_core::{
    Claimed, DeadKind, DeadReason, Due, Error, ErrorKind, Job, Result, Settled, Settlement, Verdict,
};
use redis::Value;

use crate::args::due_arg;
use crate::batch::Chunk;
use crate::error::unexpected;
use crate::handle;
use crate::keys::Partition;
use crate::record;
use crate::reply;
use crate::store::Store;

const SETTLE: &str = "settle";

/// A leased job with an undecodable record or payload. No runner gets it.
#[derive(Debug)]
pub(crate) struct UndecodableJob {
    pub(crate) job: Job,
    pub(crate) shard: u16,
    pub(crate) token: u64,
}

impl Store {
    pub(crate) async fn settle<'a>(
        &'a self,
        settlements: &'a [Settlement],
    ) -> Result<Vec<Settled>> {
        // Stale may also mean that the job is in another shard: `route` then tries the others.
        let is_stale = |answer: &Settled| *answer == Settled::Stale;
        let answers = self
            .route(SETTLE, settlements, is_stale, |chunk| Box::pin(self.settle_chunk(chunk)))
            .await?;
        // Stale ones included: their leases have ended, too.
        self.leases.remove(settlements.iter().map(|settlement| &settlement.lease));
        Ok(answers)
    }

    async fn settle_chunk(&self, chunk: Chunk<'_, Settlement>) -> Result<Option<Vec<Settled>>> {
        let mut endings = Vec::with_capacity(chunk.items.len());
        for Settlement { lease, verdict, .. } in &chunk.items {
            let handle = handle::handle(lease.job).to_vec();
            endings.push(LeaseEnding::new(handle, lease.token.0, verdict)?);
        }
        let Some(answer) = self.end_leases(&chunk.partition, &endings).await? else {
            return Ok(None);
        };
        let answers = reply::bytes(answer).unwrap_or_default();
        if answers.len() != chunk.items.len() {
            return unexpected(SETTLE);
        }
        let answers = answers.iter().map(|answer| match answer {
            b'1' => Settled::Accepted,
            _ => Settled::Stale,
        });
        Ok(Some(answers.collect()))
    }

    /// Marks an undecodable leased job dead, so that operators see it, and reports it in its claim.
    /// A failure is logged: the lease expires, and the job's next claim tries again.
    pub(crate) async fn quarantine(
        &self,
        undecodable: UndecodableJob,
        message: &str,
        claimed: &mut Claimed,
    ) {
        let reason = DeadReason::new(DeadKind::Undecodable, message);
        let verdict = Verdict::dead(reason.clone());
        match self.end_undecodable(&undecodable, &verdict).await {
            Ok(()) => claimed.quarantined.push((undecodable.job, reason)),
            Err(error) => tracing::warn!(%error, queue = %undecodable.job.queue,
                "Redis: a job that cannot be decoded could not be made dead yet"),
        }
    }

    async fn end_undecodable(&self, undecodable: &UndecodableJob, verdict: &Verdict) -> Result<()> {
        let UndecodableJob { job, shard, token } = undecodable;
        let ending = LeaseEnding::new(handle::handle(job.id).to_vec(), *token, verdict)?;
        let partitions = self.partitions_of(SETTLE, &job.queue).await?;
        if let Some(partition) = partitions.all.get(usize::from(*shard)) {
            self.end_leases(partition, &[ending]).await?;
        }
        Ok(())
    }

    async fn end_leases(
        &self,
        partition: &Arc<Partition>,
        endings: &[LeaseEnding],
    ) -> Result<Option<Value>> {
        let mut call = self.scripts.settle.on([&**partition]);
        let letters: Vec<u8> = endings.iter().map(|ending| ending.letter).collect();
        let (max, age) = self.history_args(partition);
        call.arg(&partition.channel).arg(letters).arg(max).arg(age);
        for ending in endings {
            call.arg(&ending.handle[..]);
        }
        for ending in endings {
            call.arg(&ending.token.to_be_bytes()[..]);
        }
        for detail in endings.iter().flat_map(|ending| &ending.details) {
            call.arg(&detail[..]);
        }
        self.run_on(SETTLE, partition, call).await
    }
}

/// Arguments of `scripts/settle.lua` for one lease.
struct LeaseEnding {
    handle: Vec<u8>,
    token: u64,
    letter: u8,
    /// As many as `scripts/settle.lua` expects for the letter.
    details: Vec<Vec<u8>>,
}

impl LeaseEnding {
    fn new(handle: Vec<u8>, token: u64, verdict: &Verdict) -> Result<Self> {
        let (letter, details) = encode_verdict(verdict)?;
        Ok(Self { handle, token, letter, details })
    }
}

/// As in `scripts/settle.lua`.
///
/// # Errors
/// `Unsupported` for a verdict from a later dq-core.
fn encode_verdict(verdict: &Verdict) -> Result<(u8, Vec<Vec<u8>>)> {
    let due_at = |due: &Due| due_arg(*due).into_bytes();
    Ok(match verdict {
        Verdict::Done => (b'D', Vec::new()),
        Verdict::Skip { reason } => (b'S', vec![reason.clone().into_bytes()]),
        Verdict::Retry { due, error } => (b'R', vec![due_at(due), error.clone().into_bytes()]),
        Verdict::Again { due, payload } => (b'G', vec![due_at(due), payload.to_vec()]),
        Verdict::Snooze(due) => (b'Z', vec![due_at(due)]),
        Verdict::Release { started: false } => (b'U', Vec::new()),
        Verdict::Release { started: true } => (b'B', Vec::new()),
        Verdict::Dead { reason, failed } => {
            let failed = if *failed { b'1' } else { b'0' };
            (b'X', vec![vec![failed], record::encode_reason(reason)])
        }
        verdict => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the Redis backends do not know the verdict {verdict:?}"),
            )
            .operation(SETTLE));
        }
    })
}
