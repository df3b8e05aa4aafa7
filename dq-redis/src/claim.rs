//! Claim and renew.

use std::sync::{Arc, PoisonError};

use dq_core::{
    ClaimParams, Claimed, FencingToken, LeasedJob, QueueName, Renewal, Renewed, Result, Timestamp,
    Want,
};
use redis::Value;

use crate::batch::{CHUNK, Chunk};
use crate::error::{self, unexpected};
use crate::handle;
use crate::keys::Lane;
use crate::record::{self, State};
use crate::reply::Reply;
use crate::shards::apart::Slot;
use crate::store::Store;

pub(crate) const CLAIM: &str = "claim";
const RENEW: &str = "renew";

/// Bytes of records that one claim brings, unless a single one is larger.
pub(crate) const CLAIM_BYTES: usize = 1024 * 1024;

/// Queues of one call.
const LANES: usize = 200;

/// What was claimed, and what could not be read.
#[derive(Debug)]
pub(crate) struct Brought {
    pub(crate) claimed: Claimed,
    pub(crate) unreadable: Vec<Unreadable>,
    /// Queues that cannot be served, and why.
    pub(crate) refused: Vec<(QueueName, String)>,
}

impl Brought {
    pub(crate) fn len(&self) -> usize {
        self.claimed.jobs.len() + self.unreadable.len()
    }

    pub(crate) fn refuse(&mut self, queue: &QueueName, why: String) {
        if !self.refused.iter().any(|(name, _)| name == queue) {
            self.refused.push((queue.clone(), why));
        }
    }
}

/// A leased job whose record is not one of ours.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) queue: QueueName,
    /// Where it is.
    pub(crate) shard: u16,
    pub(crate) handle: Vec<u8>,
    pub(crate) token: u64,
}

/// One queue of a claim, or one shard of it.
pub(crate) struct Wish<'a> {
    pub(crate) lane: Arc<Lane>,
    /// Which of the wants it serves.
    pub(crate) number: usize,
    pub(crate) want: &'a Want,
    /// When to come again, by the last call.
    pub(crate) next: Option<Timestamp>,
}

/// What is still wanted.
pub(crate) struct Rest {
    /// Of each want.
    pub(crate) left: Vec<usize>,
    /// Layouts were learned, so there may be more in other shards.
    learned: bool,
}

impl Store {
    /// Leases due jobs. If a later call of several fails, those that were leased are returned.
    pub(crate) async fn claim(&self, params: &ClaimParams<'_>) -> Result<Brought> {
        self.adopt(CLAIM, params.wants.iter().map(|want| &want.queue)).await?;
        let claimed = Claimed { jobs: Vec::new(), next_due: None, now: Timestamp::EPOCH };
        let mut brought = Brought { claimed, unreadable: Vec::new(), refused: Vec::new() };
        if params.wants.is_empty() {
            brought.claimed.now = self.now(CLAIM).await?;
        }
        let left = params.wants.iter().map(|want| want.max).collect();
        let mut rest = Rest { left, learned: true };
        while rest.learned {
            rest.learned = false;
            self.claim_once(params, &mut rest, &mut brought).await?;
        }
        self.sort(params.wants, &mut brought.claimed);
        self.tell_refusals(params.wants, &brought)?;
        Ok(brought)
    }

    /// Visits each lane that is known.
    async fn claim_once(
        &self,
        params: &ClaimParams<'_>,
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Result<()> {
        let groups = self.groups(params.wants);
        let claimed = if self.link.server().is_cluster() && groups.len() > 1 {
            let mut slots: Vec<_> = groups.into_iter().map(Slot::new).collect();
            // Rare, so kept out of every claim's future.
            Box::pin(self.claim_apart(params, &mut slots, rest, brought)).await
        } else {
            self.claim_together(params, groups, rest, brought).await
        };
        match claimed {
            Err(error) if brought.claimed.jobs.is_empty() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "Redis: a claim was cut short");
                brought.claimed.next_due = Some(brought.claimed.now);
                rest.learned = false;
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Serves one group after the other.
    async fn claim_together(
        &self,
        params: &ClaimParams<'_>,
        groups: Vec<Vec<Wish<'_>>>,
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Result<()> {
        let mut next_due = None;
        for mut group in groups {
            self.claim_group(&mut group, params.limit, rest, brought).await?;
            let next = group.iter().filter_map(|wish| wish.next).min();
            next_due = next_due.into_iter().chain(next).min();
        }
        brought.claimed.next_due = next_due;
        Ok(())
    }

    /// What came from several shards, in due order in each queue.
    fn sort(&self, wants: &[Want], claimed: &mut Claimed) {
        if wants.iter().all(|want| self.lanes.spread(&want.queue).is_single()) {
            return;
        }
        let number = |job: &LeasedJob| wants.iter().position(|want| want.queue == job.job.queue);
        claimed.jobs.sort_by_cached_key(|job| (number(job), job.job.due, job.job.id));
    }

    /// A queue that cannot be served keeps the others from nothing. It is logged once, until it is
    /// served again, and is an error where nothing else was asked for.
    fn tell_refusals(&self, wants: &[Want], brought: &Brought) -> Result<()> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = |queue: &QueueName| brought.refused.iter().any(|(name, _)| name == queue);
        refused.retain(|queue| is_refused(queue) || !wants.iter().any(|want| want.queue == *queue));
        for (queue, why) in &brought.refused {
            if refused.insert(queue.clone()) {
                tracing::error!(%queue, why, "Redis: this queue cannot be served");
            }
        }
        match brought.refused.first() {
            Some((queue, why)) if wants.iter().all(|want| is_refused(&want.queue)) => {
                Err(error::of_queue(CLAIM, &self.link.server().address, queue, why))
            }
            _ => Ok(()),
        }
    }

    /// Wants that one call can serve: a cluster takes keys of one slot only.
    fn groups<'a>(&self, wants: &'a [Want]) -> Vec<Vec<Wish<'a>>> {
        let mut groups: Vec<Vec<Wish<'_>>> = Vec::new();
        let apart = self.link.server().is_cluster();
        for (number, want) in wants.iter().enumerate() {
            for lane in &self.lanes.spread(&want.queue).lanes {
                let wish = Wish { lane: Arc::clone(lane), number, want, next: None };
                let fits = |group: &&mut Vec<Wish<'_>>| {
                    group.len() < LANES && (!apart || group[0].lane.slot == wish.lane.slot)
                };
                match groups.iter_mut().find(fits) {
                    Some(group) => group.push(wish),
                    None => groups.push(vec![wish]),
                }
            }
        }
        groups
    }

    /// Calls until no queue of the group that may bring more has more.
    async fn claim_group(
        &self,
        group: &mut [Wish<'_>],
        limit: usize,
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Result<()> {
        loop {
            let left = limit.saturating_sub(brought.claimed.jobs.len());
            let mut call = self.scripts.claim.on(group.iter().map(|wish| &*wish.lane));
            call.arg(left.min(CHUNK)).arg(CLAIM_BYTES);
            let mut last = None;
            for wish in &*group {
                if last == Some(wish.number) {
                    call.arg("");
                } else {
                    call.arg(rest.left[wish.number]);
                }
                call.arg(millis(wish.want.lease_for));
                last = Some(wish.number);
            }
            let answer = call.run(&self.link, CLAIM).await?;
            let before = brought.len();
            if self.read(answer, group, rest, brought).is_none() {
                return unexpected(CLAIM);
            }
            // What is due may be out of reach: then the runner comes again, not this loop.
            let idle = brought.len() == before;
            let claimed = &mut brought.claimed;
            let has_more = |wish: &Wish<'_>| {
                rest.left[wish.number] > 0 && wish.next.is_some_and(|next| next <= claimed.now)
            };
            if idle || claimed.jobs.len() >= limit || !group.iter().any(has_more) {
                return Ok(());
            }
        }
    }

    pub(crate) fn read(
        &self,
        answer: Value,
        group: &mut [Wish<'_>],
        rest: &mut Rest,
        brought: &mut Brought,
    ) -> Option<()> {
        let mut reply = Reply::new(answer)?;
        brought.claimed.now = Timestamp::from_millis(reply.number()?);
        for wish in &mut *group {
            wish.next = None;
            match reply.list_or_text()? {
                Ok(served) => {
                    let taken = self.read_lane(served, wish, brought)?;
                    let left = &mut rest.left[wish.number];
                    *left = left.saturating_sub(taken);
                }
                Err(why) => brought.refuse(&wish.lane.queue, why),
            }
        }
        self.read_layouts(reply, group, rest)
    }

    /// Reads the layouts that shards hold and that were not known.
    pub(crate) fn read_layouts(
        &self,
        mut reply: Reply,
        group: &[Wish<'_>],
        rest: &mut Rest,
    ) -> Option<()> {
        while !reply.is_empty() {
            let number = usize::try_from(reply.number()?).ok()?;
            let layout = reply.bytes()?;
            let queue = &group.get(number)?.lane.queue;
            rest.learned |= self.lanes.learn(queue, &String::from_utf8_lossy(&layout));
        }
        Some(())
    }

    /// Reads what one lane gave, and says how many jobs that are.
    fn read_lane(
        &self,
        mut served: Reply,
        wish: &mut Wish<'_>,
        brought: &mut Brought,
    ) -> Option<usize> {
        wish.next = served.maybe()?.map(Timestamp::from_millis);
        if served.is_empty() {
            return Some(0);
        }
        let leased_until = Timestamp::from_millis(served.number()?);
        let first = u64::try_from(served.number()?).ok()?;
        let mut token = first;
        let Lane { queue, shard, belief, .. } = &*wish.lane;
        while !served.is_empty() {
            let (handle, due) = (served.bytes()?, served.number()?);
            let (record, state) = (served.bytes()?, served.bytes()?);
            let state = State::decode(&state);
            match record::decode(queue, &handle, &record, due, state) {
                Some(mut job) => {
                    job.deliveries += 1;
                    if !belief.is_empty() {
                        self.leases.note(queue, job.id, *shard);
                    }
                    let token = FencingToken(token);
                    brought.claimed.jobs.push(LeasedJob { job, token, leased_until });
                }
                None => brought.unreadable.push(Unreadable {
                    queue: queue.clone(),
                    shard: *shard,
                    handle: handle.to_vec(),
                    token,
                }),
            }
            token += 1;
        }
        usize::try_from(token - first).ok()
    }

    /// Makes leases last from now.
    pub(crate) async fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> Result<Vec<Renewed>> {
        let absent = |answer: &Renewed| *answer == Renewed::Lost;
        let answers =
            self.seek(RENEW, renewals, absent, |chunk| Box::pin(self.prolong(chunk))).await?;
        let lost = renewals.iter().zip(&answers).filter(|(_, answer)| absent(answer));
        self.leases.forget(lost.map(|(renewal, _)| &renewal.lease));
        Ok(answers)
    }

    async fn prolong(&self, chunk: Chunk<'_, Renewal>) -> Result<Vec<(usize, Renewed)>> {
        let mut call = self.scripts.renew.on([&*chunk.lane]);
        for (_, renewal) in &chunk.items {
            let lease = &renewal.lease;
            call.arg(&handle::handle(lease.job)[..])
                .arg(lease.token.0)
                .arg(millis(renewal.lease_for));
        }
        let answer = call.run(&self.link, RENEW).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            let mut answers = Vec::with_capacity(chunk.items.len());
            for (place, _) in &chunk.items {
                let renewed = match reply.number()? {
                    0 => Renewed::Lost,
                    until => Renewed::Until(Timestamp::from_millis(until)),
                };
                answers.push((*place, renewed));
            }
            if !reply.is_empty() {
                self.hear(&chunk.lane, &reply.bytes()?);
            }
            Some(answers)
        };
        match read(answer) {
            Some(answers) => Ok(answers),
            None => unexpected(RENEW),
        }
    }
}

/// A length of time as scripts read it; at least a millisecond.
pub(crate) fn millis(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX.unsigned_abs() / 4096)
}
