//! Settles leased jobs, and delivers the payloads of jobs that wait again.

use std::sync::Arc;

use dq_core::{Result, Settled, Settlement, Verdict};

use crate::engine::Engine;
use crate::entries;
use crate::error::LostReply;
use crate::log::Replica;
use crate::log::wire::{self, Command};

impl Engine {
    pub(crate) async fn settle(
        self: &Arc<Self>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let now = self.log.now();
        let items: Result<_> = settlements.iter().map(wire::Settlement::try_from).collect();
        let settled = entries::append(items?, |items: Vec<wire::Settlement>| {
            let ids: Vec<_> = items.iter().map(wire::Settlement::job).collect();
            // With each job as it is now: a later entry may change it before the call returns.
            let read = move |replica: &mut Replica, results: Vec<Settled>, _| -> Vec<_> {
                results.into_iter().zip(ids).map(|(result, id)| (result, replica.job(id))).collect()
            };
            self.log.call("settle", LostReply::OutcomeUnknown, Command::Settle(items), read)
        })
        .await?;
        let mut waiting = Vec::new();
        for (settlement, (result, job)) in settlements.iter().zip(&settled) {
            let leased_payload = self.payloads.take_leased(settlement.lease.job);
            let payload = match &settlement.verdict {
                // Without a payload, another process has claimed the job, or an earlier lease's
                // settlement took it.
                Verdict::Retry { .. } | Verdict::Snooze(_) | Verdict::Release { .. } => {
                    leased_payload
                }
                Verdict::Again { payload, .. } => Some(payload.clone()),
                _ => continue,
            };
            if let (Settled::Accepted, Some(job)) = (result, job) {
                waiting.push((job.clone(), payload));
            }
        }
        self.deliver(waiting, now);
        Ok(settled.into_iter().map(|(result, _)| result).collect())
    }
}
