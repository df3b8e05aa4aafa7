//! Claims from several slots of a cluster, which no single call can serve.
//!
//! All slots are first asked, at once, what is due; then those that have the oldest jobs are asked
//! for them, at once too. When nothing is due that is one call for each slot. Somebody else may take
//! what was seen: then there are fewer jobs, never others.

use dq_core::{ClaimParams, Result, Timestamp};
use futures_util::future::join_all;
use redis::Value;

use crate::batch::CHUNK;
use crate::claim::{Brought, CLAIM, CLAIM_BYTES, Rest, Wish, millis};
use crate::error::unexpected;
use crate::reply::Reply;
use crate::store::Store;

/// The lanes of one slot, and what was seen there.
pub(crate) struct Slot<'a> {
    wishes: Vec<Wish<'a>>,
    /// When the oldest jobs of each lane are due, if they are already.
    dues: Vec<Vec<i64>>,
    /// How many jobs each lane is to give.
    shares: Vec<usize>,
    now: Timestamp,
}

impl<'a> Slot<'a> {
    pub(crate) fn new(wishes: Vec<Wish<'a>>) -> Self {
        Self { dues: Vec::new(), shares: Vec::new(), now: Timestamp::EPOCH, wishes }
    }

    /// When to come again. A node whose clock is behind must not seem to have something now.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.wishes.iter().filter_map(|wish| wish.next).min()?;
        let late = next > self.now && next <= now;
        Some(if late { now + next.since(self.now) } else { next })
    }
}

impl Store {
    /// Claims until nothing that is due is still wanted.
    pub(crate) async fn claim_apart(
        &self,
        params: &ClaimParams<'_>,
        slots: &mut [Slot<'_>],
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Result<()> {
        let mut latest = None;
        loop {
            let before = brought.len();
            let limit = params.limit.saturating_sub(brought.claimed.jobs.len()).min(CHUNK);
            self.look_around(slots, limit, rest, brought).await?;
            share_out(slots, limit, &rest.left);
            let asked: Vec<&mut Slot<'_>> = slots
                .iter_mut()
                .filter(|slot| slot.shares.iter().any(|share| *share > 0))
                .collect();
            let calls =
                asked.iter().map(|slot| self.ask_slot(slot, limit, CLAIM_BYTES, &slot.shares));
            let answers = join_all(calls).await;
            let mut failed = None;
            for (slot, answer) in asked.into_iter().zip(answers) {
                let read = match answer {
                    Ok(answer) => self.read(answer, &mut slot.wishes, rest, brought),
                    Err(error) => {
                        failed = Some(error);
                        continue;
                    }
                };
                if read.is_none() {
                    return unexpected(CLAIM);
                }
                slot.now = brought.claimed.now;
                latest = latest.max(Some(slot.now));
            }
            let came = brought.len() - before;
            let now = latest.or(slots.iter().map(|slot| slot.now).max());
            brought.claimed.now = now.unwrap_or(brought.claimed.now);
            if let Some(error) = failed {
                return Err(error);
            }
            let has_more = |slot: &Slot<'_>| {
                slot.wishes.iter().any(|wish| {
                    rest.left[wish.number] > 0 && wish.next.is_some_and(|next| next <= slot.now)
                })
            };
            let full = brought.claimed.jobs.len() >= params.limit;
            if came == 0 || full || !slots.iter().any(has_more) {
                let now = brought.claimed.now;
                let next = slots.iter().filter_map(|slot| slot.next_due(now)).min();
                brought.claimed.next_due = next;
                return Ok(());
            }
        }
    }

    /// Sees what is due. A slot that cannot be asked keeps the others from nothing.
    async fn look_around(
        &self,
        slots: &mut [Slot<'_>],
        limit: usize,
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Result<()> {
        let wanted = |slot: &Slot<'_>| -> Vec<usize> {
            slot.wishes.iter().map(|wish| rest.left[wish.number]).collect()
        };
        let wanted: Vec<_> = slots.iter().map(wanted).collect();
        let calls =
            slots.iter().zip(&wanted).map(|(slot, wanted)| self.ask_slot(slot, limit, 0, wanted));
        let answers = join_all(calls).await;
        let (mut seen, mut failed) = (false, None);
        for (slot, answer) in slots.iter_mut().zip(answers) {
            slot.dues = vec![Vec::new(); slot.wishes.len()];
            match answer {
                Ok(answer) => {
                    if self.read_look(answer, slot, rest, brought).is_none() {
                        return unexpected(CLAIM);
                    }
                    seen |= slot.dues.iter().any(|dues| !dues.is_empty());
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !seen => Err(error),
            Some(error) => {
                tracing::warn!(%error, "Redis: some shards cannot be asked");
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn ask_slot(
        &self,
        slot: &Slot<'_>,
        limit: usize,
        bytes: usize,
        most: &[usize],
    ) -> Result<Value> {
        let mut call = self.scripts.claim.on(slot.wishes.iter().map(|wish| &*wish.lane));
        call.arg(limit).arg(bytes);
        for (wish, most) in slot.wishes.iter().zip(most) {
            call.arg(*most).arg(millis(wish.want.lease_for));
        }
        call.run(&self.link, CLAIM).await
    }

    fn read_look(
        &self,
        answer: Value,
        slot: &mut Slot<'_>,
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Option<()> {
        let mut reply = Reply::new(answer)?;
        slot.now = Timestamp::from_millis(reply.number()?);
        for (wish, dues) in slot.wishes.iter_mut().zip(&mut slot.dues) {
            wish.next = None;
            match reply.list_or_text()? {
                Ok(mut seen) => {
                    wish.next = seen.maybe()?.map(Timestamp::from_millis);
                    while !seen.is_empty() {
                        dues.push(seen.number()?);
                    }
                }
                Err(why) => brought.refuse(&wish.lane.queue, why),
            }
        }
        self.read_layouts(reply, &slot.wishes, rest)
    }
}

/// Shares out what is wanted: want by want, and of each the oldest first, wherever they are.
fn share_out(slots: &mut [Slot<'_>], limit: usize, left: &[usize]) {
    let mut seen = vec![Vec::new(); left.len()];
    for (s, slot) in slots.iter_mut().enumerate() {
        slot.shares = vec![0; slot.wishes.len()];
        for (w, (wish, dues)) in slot.wishes.iter().zip(&slot.dues).enumerate() {
            seen[wish.number].extend(dues.iter().map(|due| (*due, s, w)));
        }
    }
    let mut limit = limit;
    for (mut seen, left) in seen.into_iter().zip(left) {
        seen.sort_unstable();
        let taken = seen.len().min(*left).min(limit);
        limit -= taken;
        for (_, s, w) in &seen[..taken] {
            slots[*s].shares[*w] += 1;
        }
    }
}
