//! How leases end.

use dq_core::{DeadKind, DeadReason, Error, ErrorKind, Result, Settled, Settlement, Verdict};
use redis::Value;

use crate::batch::Chunk;
use crate::claim::Unreadable;
use crate::error::unexpected;
use crate::handle;
use crate::keys::Lane;
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
        let mut endings = Vec::with_capacity(chunk.items.len());
        for (_, Settlement { lease, verdict }) in &chunk.items {
            endings.push(Ending::new(handle::handle(lease.job).to_vec(), lease.token.0, verdict)?);
        }
        let answer = self.say(&chunk.lane, &endings).await?;
        let answers = reply::bytes(answer).unwrap_or_default();
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
        let verdict = Verdict::Dead { reason, failed: false };
        let spread = self.lanes.spread(&job.queue);
        let ending = Ending::new(job.handle.clone(), job.token, &verdict)?;
        self.say(spread.lane(job.shard), &[ending]).await?;
        Ok(())
    }

    /// Asks the script to end leases of one lane.
    async fn say(&self, lane: &Lane, endings: &[Ending]) -> Result<Value> {
        let mut call = self.scripts.settle.on([lane]);
        let letters: Vec<u8> = endings.iter().map(|ending| ending.letter).collect();
        call.arg(&lane.channel).arg(letters);
        for ending in endings {
            call.arg(&ending.handle[..]);
        }
        for ending in endings {
            call.arg(&ending.token.to_be_bytes()[..]);
        }
        for detail in endings.iter().filter_map(|ending| ending.detail.as_deref()) {
            call.arg(detail);
        }
        call.run(&self.link, SETTLE).await
    }
}

/// How one lease ends, as the script reads it.
struct Ending {
    handle: Vec<u8>,
    token: u64,
    letter: u8,
    /// Of those letters that have one, and of no others.
    detail: Option<Vec<u8>>,
}

impl Ending {
    fn new(handle: Vec<u8>, token: u64, verdict: &Verdict) -> Result<Self> {
        let (letter, detail) = words(verdict)?;
        Ok(Self { handle, token, letter, detail })
    }
}

/// A verdict as the script reads it.
fn words(verdict: &Verdict) -> Result<(u8, Option<Vec<u8>>)> {
    Ok(match verdict {
        Verdict::Done => (b'D', None),
        Verdict::Skip => (b'S', None),
        Verdict::Retry(at) => (b'R', Some(due(*at).into_bytes())),
        Verdict::Snooze(at) => (b'Z', Some(due(*at).into_bytes())),
        Verdict::Release { started: false } => (b'U', None),
        Verdict::Release { started: true } => (b'B', None),
        Verdict::Dead { reason, failed } => {
            let mut detail = vec![if *failed { b'1' } else { b'0' }];
            detail.extend(record::encode_reason(reason));
            (b'X', Some(detail))
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
