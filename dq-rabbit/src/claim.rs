//! Claims due jobs and fetches their payloads. A job that is due, or nearly, is leased to a process
//! that has prefetched its message; 250 ms later, to any process.

use std::collections::HashSet;

use dq_core::{
    ClaimParams, Claimed, DeadKind, DeadReason, JobId, LeasedJob, Result, Settlement, Verdict,
};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::{CLAIM_AHEAD, LogPosition, command, wire};

impl Engine {
    /// A claim without jobs, with the time of the next job that could be claimed. Writes nothing to
    /// the log, so that an idle runner costs the broker nothing.
    pub(crate) fn empty_claim(&self, params: &ClaimParams<'_>) -> Claimed {
        let now = self.log.now();
        let prefetched = |id| self.prefetched.contains(id);
        let next_due = self.log.peek(|replica| replica.next_due(params.wants, prefetched, now));
        Claimed { jobs: Vec::new(), next_due, now }
    }

    pub(crate) async fn claim(&self, params: &ClaimParams<'_>) -> Result<Claimed> {
        if self.only_others_can_claim(params) {
            return Ok(self.empty_claim(params));
        }
        let mut prefetched = self.prefetched.due(params.wants, self.log.now() + CLAIM_AHEAD);
        prefetched.truncate(params.limit.saturating_mul(2));
        let claim = wire::Claim::new(params.wants, params.limit, prefetched.clone());
        let mut claimed = self
            .log
            .call("claim", LostReply::Unavailable, command::Claim(claim), |_, claimed, _| claimed)
            .await?;
        self.fetch_payloads(&mut claimed.jobs).await?;
        self.drop_stale(prefetched);
        self.wait_until_due(&claimed.jobs).await;
        Ok(claimed)
    }

    /// Whether all due jobs are still reserved for processes that have prefetched them, and this is
    /// not one of them. Then a claim would only add a useless entry to the log.
    fn only_others_can_claim(&self, params: &ClaimParams<'_>) -> bool {
        let now = self.log.now();
        let prefetched = |id| self.prefetched.contains(id);
        self.log.peek(|replica| {
            replica.is_ready() && replica.all_reserved_for_others(params.wants, prefetched, now)
        })
    }

    /// Waits until all jobs are due, but at most [`CLAIM_AHEAD`] if the clock is set back
    /// meanwhile.
    async fn wait_until_due(&self, jobs: &[LeasedJob]) {
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

    /// Adds payloads and headers to leased jobs: from the prefetch buffer, else from the log. Jobs
    /// whose payload cannot be read are released or quarantined, and removed from `jobs`.
    async fn fetch_payloads(&self, jobs: &mut Vec<LeasedJob>) -> Result<()> {
        let mut unread = Vec::new();
        for leased in jobs.iter_mut() {
            let prefetched = self.take_prefetched(leased.job.id);
            if leased.job.deliveries == 1 && self.needs_message(leased.job.due, leased.job.created)
            {
                self.count_claim(prefetched.is_some());
            }
            match prefetched {
                Some(payload) => self.set_payload(leased, payload),
                None => unread.push((leased.job.id, LogPosition::of(&leased.job))),
            }
        }
        if unread.is_empty() {
            return Ok(());
        }
        let payloads = match self
            .log
            .fetch(unread.iter().map(|(_, position)| *position).collect())
            .await
        {
            Ok(payloads) => payloads,
            Err(error) => {
                tracing::warn!(%error, jobs = unread.len(), "releasing jobs: cannot read payloads");
                let unread: HashSet<_> = unread.iter().map(|(id, _)| *id).collect();
                let release = Verdict::Release { started: false };
                return self.settle_unread(jobs, &unread, &release).await;
            }
        };
        let mut missing = HashSet::new();
        for leased in jobs.iter_mut() {
            if !unread.iter().any(|(id, _)| *id == leased.job.id) {
                continue;
            }
            match payloads.get(&LogPosition::of(&leased.job)) {
                Some(payload) => self.set_payload(leased, payload.clone()),
                None => drop(missing.insert(leased.job.id)),
            }
        }
        let reason =
            DeadReason::new(DeadKind::Quarantined, "its payload is not in the log any more");
        self.settle_unread(jobs, &missing, &Verdict::Dead { reason, failed: false }).await
    }

    fn set_payload(&self, leased: &mut LeasedJob, payload: (bytes::Bytes, dq_core::Headers)) {
        self.keep_leased_payload(leased.job.id, payload.clone());
        (leased.job.payload, leased.job.headers) = payload;
    }

    /// Settles these jobs and removes them from `jobs`.
    async fn settle_unread(
        &self,
        jobs: &mut Vec<LeasedJob>,
        unread: &HashSet<JobId>,
        verdict: &Verdict,
    ) -> Result<()> {
        if unread.is_empty() {
            return Ok(());
        }
        let mut settlements = Vec::with_capacity(unread.len());
        for leased in jobs.iter().filter(|leased| unread.contains(&leased.job.id)) {
            let settlement = Settlement { lease: leased.lease(), verdict: verdict.clone() };
            settlements.push(wire::Settlement::try_from(&settlement)?);
        }
        jobs.retain(|leased| !unread.contains(&leased.job.id));
        self.log
            .call("claim", LostReply::Unavailable, command::Settle(settlements), |_, _, _| ())
            .await
    }
}
