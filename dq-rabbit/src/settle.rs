//! Settle and renew: how leases end, and how they do not.

use dq_core::{Renewal, Renewed, Result, Settled, Settlement, Verdict};

use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{command, wire};

impl Desk {
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let now = self.log.now();
        let command: Result<_> = settlements.iter().map(wire::Settlement::try_from).collect();
        let ids: Vec<_> = settlements.iter().map(|settlement| settlement.lease.job).collect();
        let command = command::Settle(command?);
        let answered =
            self.log.call("settle", Effect::Lasting, command, move |replica, answers, _| {
                // As they stand right after the call.
                let jobs = ids.iter().map(|id| replica.machine().peek(*id).cloned()).collect();
                (answers, jobs)
            });
        let (answers, jobs): (Vec<_>, Vec<_>) = answered.await?;
        let mut carried = Vec::new();
        for ((settlement, answer), job) in settlements.iter().zip(&answers).zip(jobs) {
            let payload = self.unlease(settlement.lease.job);
            let put_off = matches!(
                settlement.verdict,
                Verdict::Retry(_) | Verdict::Snooze(_) | Verdict::Release { .. }
            );
            if let (Settled::Accepted, true, Some(job), Some(payload)) =
                (answer, put_off, job, payload)
            {
                carried.extend(self.put_off(&job, payload, now));
            }
        }
        self.courier.post(carried, now);
        Ok(answers)
    }

    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let command = command::Renew(renewals.iter().map(Into::into).collect());
        self.log.call("renew", Effect::Lasting, command, |_, renewed, _| renewed).await
    }
}
