//! Claim and renew.

use std::sync::{Arc, PoisonError};

use dq_core::{
    ClaimParams, Claimed, FencingToken, LeasedJob, QueueName, Renewal, Renewed, Result, Timestamp,
    Want,
};
use redis::Value;

use crate::batch::{self, CHUNK, Chunk};
use crate::error::{self, unexpected};
use crate::handle;
use crate::keys::Lane;
use crate::record::{self, State};
use crate::reply::Reply;
use crate::store::Store;

const CLAIM: &str = "claim";
const RENEW: &str = "renew";

/// Bytes of records that one claim brings, unless a single one is larger.
const CLAIM_BYTES: usize = 1024 * 1024;

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
    fn len(&self) -> usize {
        self.claimed.jobs.len() + self.unreadable.len()
    }
}

/// A leased job whose record is not one of ours.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) queue: QueueName,
    pub(crate) handle: Vec<u8>,
    pub(crate) token: u64,
}

/// One queue of a claim.
struct Wish<'a> {
    lane: Arc<Lane>,
    want: &'a Want,
    /// How many more it may bring.
    left: usize,
    /// When to come again, by the last call.
    next: Option<Timestamp>,
}

impl Store {
    /// Leases due jobs. If a later call of several fails, those that were leased are returned.
    pub(crate) async fn claim(&self, params: &ClaimParams<'_>) -> Result<Brought> {
        let claimed = Claimed { jobs: Vec::new(), next_due: None, now: Timestamp::EPOCH };
        let mut brought = Brought { claimed, unreadable: Vec::new(), refused: Vec::new() };
        if params.wants.is_empty() {
            brought.claimed.now = self.now(CLAIM).await?;
        }
        for mut group in self.groups(params.wants) {
            match self.claim_group(&mut group, params.limit, &mut brought).await {
                Err(error) if brought.claimed.jobs.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "Redis: a claim was cut short");
                    brought.claimed.next_due = Some(brought.claimed.now);
                    break;
                }
                Ok(()) => {}
            }
        }
        self.tell_refusals(params.wants, &brought)?;
        Ok(brought)
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
        for want in wants {
            let wish = Wish { lane: self.lanes.of(&want.queue), want, left: want.max, next: None };
            let fits = |group: &&mut Vec<Wish<'_>>| {
                group.len() < LANES && (!apart || group[0].lane.slot == wish.lane.slot)
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(wish),
                None => groups.push(vec![wish]),
            }
        }
        groups
    }

    /// Calls until no queue of the group that may bring more has more.
    async fn claim_group(
        &self,
        group: &mut [Wish<'_>],
        limit: usize,
        brought: &mut Brought,
    ) -> Result<()> {
        loop {
            let left = limit.saturating_sub(brought.claimed.jobs.len());
            let mut call = self.scripts.claim.on(group.iter().map(|wish| &*wish.lane));
            call.arg(left.min(CHUNK)).arg(CLAIM_BYTES);
            for wish in &*group {
                call.arg(wish.left).arg(millis(wish.want.lease_for));
            }
            let answer = call.run(&self.link, CLAIM).await?;
            let before = brought.len();
            if read(answer, group, brought).is_none() {
                return unexpected(CLAIM);
            }
            // What is due may be out of reach: then the runner comes again, not this loop.
            let idle = brought.len() == before;
            let claimed = &mut brought.claimed;
            let has_more = |wish: &Wish<'_>| {
                wish.left > 0 && wish.next.is_some_and(|next| next <= claimed.now)
            };
            if idle || claimed.jobs.len() >= limit || !group.iter().any(has_more) {
                let next = group.iter().filter_map(|wish| wish.next).min();
                claimed.next_due = claimed.next_due.into_iter().chain(next).min();
                return Ok(());
            }
        }
    }

    /// Makes leases last from now.
    pub(crate) async fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> Result<Vec<Renewed>> {
        batch::run(&self.lanes, renewals, |chunk| Box::pin(self.prolong(chunk))).await
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
            Some(answers)
        };
        match read(answer) {
            Some(answers) => Ok(answers),
            None => unexpected(RENEW),
        }
    }
}

/// A length of time as scripts read it; at least a millisecond.
fn millis(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX.unsigned_abs() / 4096)
}

fn read(answer: Value, group: &mut [Wish<'_>], brought: &mut Brought) -> Option<()> {
    let mut reply = Reply::new(answer)?;
    let claimed = &mut brought.claimed;
    claimed.now = Timestamp::from_millis(reply.number()?);
    for wish in group {
        let mut served = match reply.list_or_text()? {
            Ok(served) => served,
            Err(why) => {
                (wish.next, wish.left) = (None, 0);
                brought.refused.push((wish.lane.queue.clone(), why));
                continue;
            }
        };
        wish.next = served.maybe()?.map(Timestamp::from_millis);
        if served.is_empty() {
            continue;
        }
        let leased_until = Timestamp::from_millis(served.number()?);
        let mut token = u64::try_from(served.number()?).ok()?;
        while !served.is_empty() {
            let (handle, due) = (served.bytes()?, served.number()?);
            let (record, state) = (served.bytes()?, served.bytes()?);
            let state = State::decode(&state);
            let queue = &wish.lane.queue;
            match record::decode(queue, &handle, &record, due, state) {
                Some(mut job) => {
                    job.deliveries += 1;
                    let token = FencingToken(token);
                    claimed.jobs.push(LeasedJob { job, token, leased_until });
                }
                None => brought.unreadable.push(Unreadable {
                    queue: queue.clone(),
                    handle: handle.to_vec(),
                    token,
                }),
            }
            wish.left = wish.left.saturating_sub(1);
            token += 1;
        }
    }
    Some(())
}
