//! Claim: which due jobs are ours, and where their payloads are.

use std::collections::HashSet;

use dq_core::{
    ClaimParams, Claimed, DeadKind, DeadReason, JobId, LeasedJob, Result, Settlement, Verdict,
};

use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{CLAIM_AHEAD, LogPosition, command, wire};

impl Desk {
    /// When a claim could bring something. Nothing is written: an idle runner costs the broker nothing.
    pub(crate) fn look(&self, params: &ClaimParams<'_>) -> Claimed {
        let now = self.log.now();
        let at_hand = |id| self.hold.has(id);
        let next_due = self.log.peek(|replica| replica.next_due(params.wants, at_hand, now));
        Claimed { jobs: Vec::new(), next_due, now }
    }

    pub(crate) async fn claim(&self, params: &ClaimParams<'_>) -> Result<Claimed> {
        if self.is_left_to_others(params) {
            return Ok(self.look(params));
        }
        let mut at_hand = self.hold.due(params.wants, self.log.now() + CLAIM_AHEAD);
        at_hand.truncate(params.limit.saturating_mul(2));
        let claiming = wire::Claim::new(params.wants, params.limit, at_hand.clone());
        let command = command::Claim(claiming);
        let mut claimed =
            self.log.call("claim", Effect::None, command, |_, claimed, _| claimed).await?;
        self.fill(&mut claimed.jobs).await?;
        self.drop_stale(at_hand);
        self.wait_for(&claimed.jobs).await;
        Ok(claimed)
    }

    /// Whether there is nothing to claim but what others have at hand. So they do it without a word of
    /// ours in the log for each of their jobs.
    fn is_left_to_others(&self, params: &ClaimParams<'_>) -> bool {
        let now = self.log.now();
        let at_hand = |id| self.hold.has(id);
        self.log.peek(|replica| {
            replica.is_ready() && replica.all_reserved_for_others(params.wants, at_hand, now)
        })
    }

    /// Nothing is handed out before it is due. However the clock is set meanwhile, it takes no longer.
    async fn wait_for(&self, jobs: &[LeasedJob]) {
        let clock = self.log.clock();
        if let Some(last) = jobs.iter().map(|leased| leased.job.due).max()
            && last > clock.now()
        {
            tokio::select! {
                () = clock.sleep_until(last) => {}
                () = clock.sleep(CLAIM_AHEAD) => {}
            }
        }
    }

    /// Puts payloads and headers into jobs that were just leased to us.
    async fn fill(&self, jobs: &mut Vec<LeasedJob>) -> Result<()> {
        let mut sought = Vec::new();
        for leased in jobs.iter_mut() {
            let held = self.hold.take(leased.job.id);
            if leased.job.deliveries == 1 && self.is_carried(leased.job.due, leased.job.created) {
                self.count_carried(held.is_some());
            }
            match held {
                Some(held) => self.hand_over(leased, held.into_payload()),
                None => sought.push((leased.job.id, LogPosition::of(&leased.job))),
            }
        }
        if sought.is_empty() {
            return Ok(());
        }
        let found = match self.log.fetch(sought.iter().map(|(_, place)| *place).collect()).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, jobs = sought.len(), "jobs are handed back unread");
                let sought: HashSet<_> = sought.iter().map(|(id, _)| *id).collect();
                let unread = Verdict::Release { started: false };
                return self.give_up(jobs, &sought, &unread).await;
            }
        };
        let mut lost = HashSet::new();
        for leased in jobs.iter_mut() {
            if !sought.iter().any(|(id, _)| *id == leased.job.id) {
                continue;
            }
            match found.get(&LogPosition::of(&leased.job)) {
                Some(payload) => self.hand_over(leased, payload.clone()),
                None => drop(lost.insert(leased.job.id)),
            }
        }
        let reason =
            DeadReason::new(DeadKind::Quarantined, "its payload is not in the log any more");
        self.give_up(jobs, &lost, &Verdict::Dead { reason, failed: false }).await
    }

    fn hand_over(&self, leased: &mut LeasedJob, payload: (bytes::Bytes, dq_core::Headers)) {
        self.lease(leased.job.id, payload.clone());
        (leased.job.payload, leased.job.headers) = payload;
    }

    /// Ends the leases of these jobs, and takes them out.
    async fn give_up(
        &self,
        jobs: &mut Vec<LeasedJob>,
        which: &HashSet<JobId>,
        verdict: &Verdict,
    ) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        let mut settlements = Vec::with_capacity(which.len());
        for leased in jobs.iter().filter(|leased| which.contains(&leased.job.id)) {
            let settlement = Settlement { lease: leased.lease(), verdict: verdict.clone() };
            settlements.push(wire::Settlement::try_from(&settlement)?);
        }
        jobs.retain(|leased| !which.contains(&leased.job.id));
        self.log.call("claim", Effect::None, command::Settle(settlements), |_, _, _| ()).await
    }
}
