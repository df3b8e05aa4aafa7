//! Claims the oldest jobs in several slots of a cluster.
//!
//! The claim *peeks* first: it reads each slot's oldest due times concurrently. It then claims a
//! *share* of the limit in each partition, concurrently. If nothing is due, that is one call per
//! slot. If another process takes a job in between, the claim returns fewer jobs, never later ones.

use dq_core::{Result, Timestamp};
use futures_util::future::join_all;
use redis::Value;

use super::{CLAIM_BYTES, Claim, PartitionRequest};
use crate::reply::Reply;

/// As the byte limit: the script leases nothing and returns due times.
const PEEK: usize = 0;

struct SlotClaim<'a> {
    requests: Vec<PartitionRequest<'a>>,
    /// The oldest due jobs' due times, by request.
    dues: Vec<Vec<i64>>,
    shares: Vec<usize>,
    /// The clock of the slot's node, from the last reply.
    now: Timestamp,
}

impl SlotClaim<'_> {
    /// When to claim again, by another node's clock, which shows `now`. If that clock is ahead, a
    /// job looks due there before it is due here. Such a job gets the delay until it is due here.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.requests.iter().filter_map(|request| request.next).min()?;
        let is_due_there_only = next > self.now && next <= now;
        Some(if is_due_there_only { now + next.since(self.now) } else { next })
    }
}

impl<'a> Claim<'a> {
    pub(super) async fn claim_from_slots(
        &mut self,
        groups: Vec<Vec<PartitionRequest<'a>>>,
    ) -> Result<()> {
        let slot = |requests| SlotClaim {
            requests,
            dues: Vec::new(),
            shares: Vec::new(),
            now: Timestamp::EPOCH,
        };
        let mut slots: Vec<_> = groups.into_iter().map(slot).collect();
        loop {
            let before = self.batch.leases();
            self.peek_slots(&mut slots).await?;
            set_shares(&mut slots, self.limit(), &self.wanted);
            let latest = self.claim_shares(&mut slots).await?;
            let now = latest.or(slots.iter().map(|slot| slot.now).max());
            let now = now.unwrap_or(self.batch.claimed.now);
            self.batch.claimed.now = now;
            let has_more = slots.iter().any(|slot| self.has_more(&slot.requests, slot.now));
            if !self.goes_on(before, has_more) {
                let next_due = slots.iter().filter_map(|slot| slot.next_due(now)).min();
                self.batch.claimed.next_due = next_due;
                return Ok(());
            }
        }
    }

    /// Returns the latest time of the slots' nodes. Keeps jobs from other slots if one slot fails.
    async fn claim_shares(&mut self, slots: &mut [SlotClaim<'_>]) -> Result<Option<Timestamp>> {
        let has_share = |slot: &&mut SlotClaim<'_>| slot.shares.iter().any(|share| *share > 0);
        let chosen: Vec<&mut SlotClaim<'_>> = slots.iter_mut().filter(has_share).collect();
        let calls = chosen.iter().map(|slot| {
            let shares = slot.shares.iter().copied().map(Some);
            self.call(&slot.requests, CLAIM_BYTES, shares, false)
        });
        let replies = join_all(calls).await;
        let (mut latest, mut failed) = (None, None);
        for (slot, reply) in chosen.into_iter().zip(replies) {
            match reply {
                Ok(reply) => {
                    self.read_claimed(reply, &mut slot.requests)?;
                    slot.now = self.batch.claimed.now;
                    latest = latest.max(Some(slot.now));
                }
                Err(error) => failed = Some(error),
            }
        }
        self.batch.claimed.now = latest.unwrap_or(self.batch.claimed.now);
        match failed {
            Some(error) => Err(error),
            None => Ok(latest),
        }
    }

    /// Errors: A slot's error, if no other slot has due jobs.
    async fn peek_slots(&mut self, slots: &mut [SlotClaim<'_>]) -> Result<()> {
        let this = &*self;
        let calls = slots.iter().map(|slot| {
            let wanted = slot.requests.iter().map(|request| Some(this.wanted[request.want_index]));
            this.call(&slot.requests, PEEK, wanted, false)
        });
        let replies = join_all(calls).await;
        let (mut is_any_due, mut failed) = (false, None);
        for (slot, reply) in slots.iter_mut().zip(replies) {
            slot.dues = vec![Vec::new(); slot.requests.len()];
            match reply {
                Ok(reply) => self.read_peeked(reply, slot)?,
                Err(error) => failed = Some(error),
            }
            is_any_due |= slot.dues.iter().any(|dues| !dues.is_empty());
        }
        match failed {
            Some(error) if !is_any_due => return Err(error),
            Some(error) => tracing::warn!(%error, "Redis: the claim of some shards failed"),
            None => {}
        }
        Ok(())
    }

    fn read_peeked(&mut self, reply: Value, slot: &mut SlotClaim<'_>) -> Result<()> {
        let mut reply = Reply::new(reply)?;
        slot.now = reply.time()?;
        for (request, dues) in slot.requests.iter_mut().zip(&mut slot.dues) {
            request.next = None;
            match reply.list_or_refusal()? {
                Ok(mut peeked) => {
                    request.next = peeked.time_or_nil()?;
                    while !peeked.is_empty() {
                        dues.push(peeked.number()?);
                    }
                }
                Err(refusal) => self.take_refusal(refusal, request)?,
            }
        }
        Ok(())
    }
}

/// The oldest jobs of each want, earlier wants first.
fn set_shares(slots: &mut [SlotClaim<'_>], mut limit: usize, wanted: &[usize]) {
    // (due time, slot, request) of each due job, by want.
    let mut due_jobs = vec![Vec::new(); wanted.len()];
    for (slot_index, slot) in slots.iter_mut().enumerate() {
        slot.shares = vec![0; slot.requests.len()];
        for (request_index, (request, dues)) in slot.requests.iter().zip(&slot.dues).enumerate() {
            let due_jobs = &mut due_jobs[request.want_index];
            due_jobs.extend(dues.iter().map(|due| (*due, slot_index, request_index)));
        }
    }
    for (mut due_jobs, wanted) in due_jobs.into_iter().zip(wanted) {
        due_jobs.sort_unstable();
        let taken = due_jobs.len().min(*wanted).min(limit);
        limit -= taken;
        for (_, slot_index, request_index) in &due_jobs[..taken] {
            slots[*slot_index].shares[*request_index] += 1;
        }
    }
}
