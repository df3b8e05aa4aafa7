//! Settles leased jobs, and publishes messages for those that wait again.

use dq_core::{Result, Settled, Settlement, Verdict};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::{command, wire};

impl Engine {
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let now = self.log.now();
        let entries: Result<_> = settlements.iter().map(wire::Settlement::try_from).collect();
        let ids: Vec<_> = settlements.iter().map(|settlement| settlement.lease.job).collect();
        let command = command::Settle(entries?);
        let called = self.log.call(
            "settle",
            LostReply::OutcomeUnknown,
            command,
            move |replica, results, _| {
                // The jobs in the state right after this settlement: a later entry may change them
                // before this call returns.
                let jobs = ids.iter().map(|id| replica.machine().peek(*id).cloned()).collect();
                (results, jobs)
            },
        );
        let (results, jobs): (Vec<_>, Vec<_>) = called.await?;
        let mut messages = Vec::new();
        for ((settlement, result), job) in settlements.iter().zip(&results).zip(jobs) {
            let payload = self.take_leased_payload(settlement.lease.job);
            let waits_again = matches!(
                settlement.verdict,
                Verdict::Retry(_) | Verdict::Snooze(_) | Verdict::Release { .. }
            );
            if let (Settled::Accepted, true, Some(job), Some(payload)) =
                (result, waits_again, job, payload)
            {
                messages.extend(self.prefetch_or_publish(&job, payload, now));
            }
        }
        self.publisher.publish_in_background(messages, now);
        Ok(results)
    }
}
