//! Claims that go by Java's target list: due jobs are moved there first, and whoever waits longest at
//! the list has them.

use dq_core::{Backend, ClaimParams, Claimed, ErrorKind, Result, Want};

use super::backend::RedissonBackend;
use super::relay;
use crate::batch::CHUNK;

impl RedissonBackend {
    /// Takes what the list has; while that is too little and more is due, moves no more than is
    /// wanted and takes again.
    pub(super) async fn claim_fairly(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = self.native.claim(params).await?;
        // One that has enough stays, with none wanted: when it is due next counts.
        let mut wants = params.wants.to_vec();
        let mut counted = 0;
        loop {
            for leased in &claimed.jobs[counted..] {
                let want = wants.iter_mut().find(|want| want.queue == leased.job.queue);
                want.into_iter().for_each(|want| want.max = want.max.saturating_sub(1));
            }
            counted = claimed.jobs.len();
            let limit = params.limit - counted;
            let more = claimed.next_due.is_some_and(|next| next <= claimed.now);
            if !more || limit == 0 || self.move_for(&wants, limit).await? == 0 {
                return Ok(claimed);
            }
            let params = ClaimParams { wants: &wants, limit, worker: params.worker };
            let next = match self.native.claim(params).await {
                // What is leased already must be handed out.
                Err(error) if counted > 0 => {
                    tracing::warn!(%error, "Redis: a claim was cut short");
                    return Ok(claimed);
                }
                next => next?,
            };
            (claimed.now, claimed.next_due) = (next.now, next.next_due);
            claimed.jobs.extend(next.jobs);
        }
    }

    /// Moves due jobs of these queues to their lists, and says how many.
    async fn move_for(&self, wants: &[Want], limit: usize) -> Result<i64> {
        let mut moved = 0;
        for want in wants.iter().filter(|want| want.max > 0) {
            let lane = self.native.store.partitions.unsharded(&want.queue);
            let most = want.max.min(limit).min(CHUNK);
            match relay::step(self.link(), &self.scripts, &lane, most).await {
                // The claim says so, and goes on with the others.
                Err(error) if error.kind() == ErrorKind::Incompatible => {}
                step => moved += step?.moved,
            }
        }
        Ok(moved)
    }
}
