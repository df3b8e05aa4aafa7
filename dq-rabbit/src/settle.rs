//! Settles leased jobs. A job that waits again gets a new message.

use std::sync::Arc;

use dq_core::{Result, Settled, Settlement, Verdict};

use crate::engine::Engine;
use crate::entries;
use crate::error::LostReply;
use crate::log::{Replica, ReplicaJob, command, wire};

impl Engine {
    pub(crate) async fn settle(
        self: &Arc<Self>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let now = self.log.now();
        let all: Result<_> = settlements.iter().map(wire::Settlement::try_from).collect();
        let entries = entries::split(all?);
        let settled = entries::join(entries.into_iter().map(|entry| self.settle_entry(entry)));
        let settled = settled.await?;
        let mut messages = Vec::new();
        let mut unread = Vec::new();
        for (settlement, (result, job)) in settlements.iter().zip(&settled) {
            let leased = self.payloads.take_leased(settlement.lease.job);
            let payload = match &settlement.verdict {
                Verdict::Retry { .. } | Verdict::Snooze(_) | Verdict::Release { .. } => leased,
                Verdict::Again { payload, .. } => Some(payload.clone()),
                _ => continue,
            };
            match (result, job, payload) {
                (Settled::Accepted, Some(job), Some(payload)) => {
                    messages.extend(self.buffer_or_publish(job, payload, now));
                }
                // Another process claimed the job, or a settlement of an earlier lease took the
                // payload.
                (Settled::Accepted, Some(job), None) => unread.push(job.clone()),
                _ => {}
            }
        }
        drop(self.publisher.start_publishing(messages, now));
        self.publish_waiting(unread, now);
        Ok(settled.into_iter().map(|(result, _)| result).collect())
    }

    /// Appends one entry. Returns each result with the job right after the settlement, because a
    /// later entry may change it before this call returns.
    async fn settle_entry(
        &self,
        settlements: Vec<wire::Settlement>,
    ) -> Result<Vec<(Settled, Option<ReplicaJob>)>> {
        let ids: Vec<_> = settlements.iter().map(wire::Settlement::job).collect();
        let read = move |replica: &mut Replica, results: Vec<Settled>, _| {
            results.into_iter().zip(ids).map(|(result, id)| (result, replica.job(id))).collect()
        };
        let settle = command::Settle(settlements);
        self.log.call("settle", LostReply::OutcomeUnknown, settle, read).await
    }
}
