//! How leases end.

use dq_core::{DeadKind, DeadReason, Error, ErrorKind, Result, Settled, Settlement, Verdict};

use crate::batch::Chunk;
use crate::claim::Unreadable;
use crate::error::unexpected;
use crate::handle;
use crate::record;
use crate::reply;
use crate::schedule::due;
use crate::store::Store;

const SETTLE: &str = "settle";

impl Store {
    /// Ends leases with a verdict each.
    pub(crate) async fn settle<'a>(
        &'a self,
        settlements: &'a [Settlement],
    ) -> Result<Vec<Settled>> {
        let absent = |answer: &Settled| *answer == Settled::Stale;
        let answers =
            self.seek(SETTLE, settlements, absent, |chunk| Box::pin(self.end(chunk))).await?;
        self.leases.forget(settlements.iter().map(|settlement| &settlement.lease));
        Ok(answers)
    }

    async fn end(&self, chunk: Chunk<'_, Settlement>) -> Result<Vec<(usize, Settled)>> {
        let mut call = self.scripts.settle.on([&*chunk.lane]);
        call.arg(&chunk.lane.channel);
        for (_, settlement) in &chunk.items {
            let lease = &settlement.lease;
            let (code, detail) = verdict(&settlement.verdict)?;
            call.arg(&handle::handle(lease.job)[..]).arg(lease.token.0).arg(code).arg(detail);
        }
        let answers = reply::bytes(call.run(&self.link, SETTLE).await?).unwrap_or_default();
        let Some((answers, layout)) = answers.split_at_checked(chunk.items.len()) else {
            return unexpected(SETTLE);
        };
        self.hear(&chunk.lane, layout);
        let answers = answers.iter().map(|answer| match answer {
            b'1' => Settled::Accepted,
            _ => Settled::Stale,
        });
        Ok(chunk.items.iter().map(|(place, _)| *place).zip(answers).collect())
    }

    /// Parks leased jobs that no handler can read, where an operator sees them. If that fails their
    /// leases lapse, and it is tried again; other jobs are not affected.
    pub(crate) async fn park(&self, unreadable: &[Unreadable], message: &str) {
        for job in unreadable {
            tracing::error!(queue = %job.queue, "a job is parked as dead: {message}");
            if let Err(error) = self.bury(job, message).await {
                tracing::warn!(%error, "it could not be parked yet");
            }
        }
    }

    async fn bury(&self, job: &Unreadable, message: &str) -> Result<()> {
        let reason = DeadReason::new(DeadKind::Undecodable, message);
        let (code, detail) = verdict(&Verdict::Dead { reason, failed: false })?;
        let spread = self.lanes.spread(&job.queue);
        let lane = spread.lane(job.shard);
        let mut call = self.scripts.settle.on([&**lane]);
        call.arg(&lane.channel).arg(&job.handle[..]).arg(job.token).arg(code).arg(&detail[..]);
        call.run(&self.link, SETTLE).await?;
        Ok(())
    }
}

/// A verdict as the script reads it.
fn verdict(verdict: &Verdict) -> Result<(&'static str, Vec<u8>)> {
    Ok(match verdict {
        Verdict::Done => ("D", Vec::new()),
        Verdict::Skip => ("S", Vec::new()),
        Verdict::Retry(at) => ("R", due(*at).into_bytes()),
        Verdict::Snooze(at) => ("Z", due(*at).into_bytes()),
        Verdict::Release { started: false } => ("U", Vec::new()),
        Verdict::Release { started: true } => ("B", Vec::new()),
        Verdict::Dead { reason, failed } => {
            let mut detail = vec![if *failed { b'1' } else { b'0' }];
            detail.extend(record::encode_reason(reason));
            ("X", detail)
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
