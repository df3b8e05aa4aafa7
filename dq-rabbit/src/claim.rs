//! Claims due jobs and adds their payloads. For 250 ms after the due time, only processes with the
//! payload can claim a job; later any process can.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{
    ClaimParams, Claimed, DeadKind, DeadReason, Job, JobId, LeasedJob, Result, Settled, Settlement,
    Timestamp, Verdict, Want,
};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::grant::Granted;
use crate::log::wire::{self, Command};
use crate::log::{CLAIM_AHEAD, PayloadRef, RESERVED_FOR, ReadPurpose, Replica, StoredPayload};
use crate::payloads::PayloadReads;
use crate::payloads::buffer::{Buffered, MAX_OVERDUE, Origin};

impl Engine {
    /// Returns an empty claim with the next due time. It writes nothing to the log, so an idle
    /// runner costs the broker nothing.
    pub(crate) fn empty_claim(&self, params: &ClaimParams<'_>) -> Claimed {
        let (now, elapsed) = (self.log.now(), self.log.clock().elapsed());
        let is_prefetched = |id| self.payloads.contains(id);
        let next_due =
            self.log.peek(|replica| replica.next_due(params.wants, is_prefetched, now, elapsed));
        let mut claimed = Claimed::new(Vec::new(), next_due, now);
        claimed.quarantined = std::mem::take(&mut lock(&self.quarantined));
        claimed
    }

    pub(crate) async fn claim(&self, params: &ClaimParams<'_>) -> Result<Claimed> {
        if self.only_others_can_claim(params) {
            return Ok(self.empty_claim(params));
        }
        let mut prefetched = self.due_payloads(params.wants, self.log.now() + CLAIM_AHEAD);
        // Names more jobs than the limit, because some may be claimed meanwhile; not all, because
        // the log stores 16 bytes for each.
        prefetched.truncate(params.limit.saturating_mul(2));
        let claim = wire::Claim::new(params, prefetched);
        let is_limited = |want: &Want| self.log.peek(|it| it.machine().is_limited(&want.queue));
        let claim = match params.wants.iter().any(is_limited) {
            false => Command::Claim(claim),
            true => {
                let starting = params.wants.iter().map(|want| want.starting as u64).collect();
                Command::ClaimLimited(claim, starting)
            }
        };
        let releases = self.releases.clone();
        let grant = |replica: &mut Replica, claimed: Claimed, _| {
            let ids = claimed.jobs.iter().map(|leased| leased.job.id);
            let stored = ids.filter_map(|id| Some((id, replica.machine().stored(id)?.clone())));
            let stored = stored.collect::<HashMap<_, _>>();
            (Granted::new(claimed, releases), stored)
        };
        let (mut granted, stored) =
            self.log.call("claim", LostReply::Unavailable, claim, grant).await?;
        self.fetch_payloads(&mut granted.claimed.jobs, &stored).await?;
        self.wait_until_due(&granted.claimed.jobs).await;
        let mut claimed = granted.take();
        claimed.quarantined = std::mem::take(&mut lock(&self.quarantined));
        Ok(claimed)
    }

    /// Whether all due jobs are reserved for other processes. A claim would only add an entry.
    fn only_others_can_claim(&self, params: &ClaimParams<'_>) -> bool {
        let (now, elapsed) = (self.log.now(), self.log.clock().elapsed());
        let is_prefetched = |id| self.payloads.contains(id);
        self.log.peek(|replica| {
            replica.is_ready()
                && replica.all_reserved_for_others(params.wants, is_prefetched, now, elapsed)
        })
    }

    /// Waits until all jobs are due, but at most [`CLAIM_AHEAD`], because somebody may set the
    /// clock back.
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

    /// Adds headers, and payloads from the buffer, else from the log. Releases or quarantines jobs
    /// without a readable payload and removes them from `jobs`.
    async fn fetch_payloads(
        &self,
        jobs: &mut Vec<LeasedJob>,
        stored: &HashMap<JobId, StoredPayload>,
    ) -> Result<()> {
        let mut reads = PayloadReads::default();
        for leased in jobs.iter_mut() {
            let stored = &stored[&leased.job.id];
            leased.job.headers = stored.headers();
            match self.take_buffered(&leased.job, &stored.payload) {
                Some(payload) => self.set_payload(leased, payload),
                None => drop(reads.unread.insert(leased.job.id, stored.payload)),
            }
        }
        if reads.unread.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.read_payloads(&mut reads, ReadPurpose::Run).await {
            tracing::warn!(%error, jobs = reads.unread.len(), "releasing jobs: cannot read payloads");
        }
        let PayloadReads { unread, mut found, lost } = reads;
        for leased in jobs.iter_mut() {
            if let Some(payload) = found.remove(&leased.job.id) {
                self.set_payload(leased, payload);
            }
        }
        // A job that has another payload now is not leased any more.
        for released in jobs.extract_if(.., |leased| unread.contains_key(&leased.job.id)) {
            let _ = self.releases.send(released.lease());
        }
        self.quarantine(jobs, &lost).await
    }

    /// Takes the payload of a leased job from the buffer, and counts whether its message had come.
    fn take_buffered(&self, job: &Job, stored: &PayloadRef) -> Option<Bytes> {
        let now = self.log.now();
        let buffered = self.payloads.take(job.id);
        let origin = buffered.as_ref().map(|buffered| &buffered.origin);
        let was_delivered = matches!(origin, Some(Origin::Message(_)));
        let may_count = match origin {
            // Its message may have reached another process.
            Some(Origin::Log) => now >= job.due + RESERVED_FOR,
            Some(Origin::Own) => false,
            Some(Origin::Message(_)) | None => true,
        };
        let payload = buffered.and_then(Buffered::into_payload);
        let payload = payload.filter(|payload| stored.is_of(payload));
        if may_count && self.should_have_message(job, now) {
            self.misses.count_claim(was_delivered && payload.is_some(), now);
        }
        payload
    }

    /// Whether a job that is claimed now should have brought a message. A job that was leased
    /// before may wait without one, so only the first lease counts. After [`MAX_OVERDUE`], the
    /// buffer has dropped the message.
    fn should_have_message(&self, job: &Job, now: Timestamp) -> bool {
        job.deliveries == 1
            && now <= job.due + MAX_OVERDUE
            && self.publisher.has_messages()
            && self.needs_message(job.due, job.created)
    }

    fn set_payload(&self, leased: &mut LeasedJob, payload: Bytes) {
        self.payloads.lease(leased.job.id, payload.clone());
        leased.job.payload = payload;
    }

    /// Makes the jobs dead whose payloads are lost, and removes them from `jobs`. If that fails,
    /// the jobs are released with the others.
    async fn quarantine(&self, jobs: &mut Vec<LeasedJob>, lost: &HashSet<JobId>) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        lost.iter().for_each(|id| self.log.add_lost_payload(*id));
        let reason =
            DeadReason::new(DeadKind::Quarantined, "the log does not have its payload any more");
        let verdict = Verdict::dead(reason.clone());
        let leases = jobs.iter().filter(|leased| lost.contains(&leased.job.id));
        let settlements: Result<_> = leases
            .map(|leased| Settlement::new(leased.lease(), verdict.clone()))
            .map(|settlement| wire::Settlement::try_from(&settlement))
            .collect();
        let settle = Command::Settle(settlements?);
        let ignore = |_: &mut Replica, _: Vec<Settled>, _| ();
        self.log.call("claim", LostReply::Unavailable, settle, ignore).await?;
        let dead = jobs.extract_if(.., |leased| lost.contains(&leased.job.id));
        lock(&self.quarantined).extend(dead.map(|dead| (dead.job, reason.clone())));
        Ok(())
    }
}
