//! Settle and renew: how leases end, and how they do not.

use dq_core::{Renewal, Renewed, Result, Settled, Settlement, Verdict};

use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{Command, Reply, Settling};

impl Desk {
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let now = self.log.now();
        let command: Result<_> = settlements.iter().map(Settling::try_from).collect();
        let ids: Vec<_> = settlements.iter().map(|settlement| settlement.lease.job).collect();
        let command = Command::Settle(command?);
        let answered =
            self.log.call("settle", Effect::Lasting, command, move |replica, reply, _| {
                let Reply::Settled(answers) = reply else { return (Vec::new(), Vec::new()) };
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
        let command = Command::Renew(renewals.iter().map(Into::into).collect());
        let read = |_: &mut _, reply, _| match reply {
            Reply::Renewed(answers) => answers,
            _ => Vec::new(),
        };
        self.log.call("renew", Effect::Lasting, command, read).await
    }
}
