//! Claims from many queues by looking only at queues with something to claim.
//!
//! The queue index, a sorted set, says when to look at each queue (see `scripts/library/keys.lua`).
//! A claim looks at the wanted queues that are due there, and updates their entries in the same
//! calls. It always looks at sharded queues, which are not in the index.
//!
//! Every ten minutes and after each reconnect, a claim looks at all wanted queues, so a lost or
//! wrong index, which only other programs can cause, delays jobs for a limited time.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{ClaimParams, QueueName, Result, Timestamp, Want};

use crate::claim::{Claim, ClaimBatch, MAX_PARTITIONS};
use crate::reply::Reply;
use crate::store::RedisBackend;

/// Maximum due entries to read. If there are as many, a claim looks at all queues.
const MAX_DUE: usize = 10_000;

/// Maximum later entries to read. If none of them is wanted, the claim is repeated at the last
/// one's time.
const MAX_LATER: usize = 20;

const FULL_LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// A claim for few jobs still looks at this many queues per call: fewer would cost more calls.
const MIN_QUEUES_PER_CALL: usize = 16;

/// Queues that are due now or next, by the index.
struct Upcoming {
    now: Timestamp,
    /// When each queue is due; `None` if it is due now.
    entries: HashMap<String, Option<i64>>,
    /// The last entry's time, if there may be more.
    rest: Option<i64>,
}

impl Upcoming {
    fn is_due(&self, queue: &QueueName) -> bool {
        matches!(self.entries.get(queue.as_str()), Some(None))
    }

    fn choose(&self, wants: &[Want], is_sharded: impl Fn(&Want) -> bool) -> Vec<Want> {
        let is_chosen = |want: &&Want| self.is_due(&want.queue) || is_sharded(want);
        wants.iter().filter(is_chosen).cloned().collect()
    }

    fn next(&self, wants: &[Want]) -> Option<Timestamp> {
        let times = wants.iter().filter_map(|want| *self.entries.get(want.queue.as_str())?);
        times.min().or(self.rest).map(Timestamp::from_millis)
    }
}

impl RedisBackend {
    pub(crate) async fn claim_by_index(
        &self,
        index: &str,
        params: &ClaimParams<'_>,
        batch: &mut ClaimBatch,
    ) -> Result<()> {
        let connection = self.link.connections();
        let began = self.link.clock().elapsed();
        let relies_on_index = lock(&self.last_full_look).is_some_and(|(looked_on, looked_at)| {
            looked_on == connection && began < looked_at + FULL_LOOK_INTERVAL
        });
        let upcoming = if relies_on_index { self.upcoming(index).await? } else { None };
        let Some(upcoming) = upcoming else {
            if self.claim_from_all(params, batch).await? {
                *lock(&self.last_full_look) = Some((connection, began));
            }
            return Ok(());
        };
        batch.claimed.now = upcoming.now;
        let mut next_due = upcoming.next(params.wants);
        let queues_per_call = params.limit.clamp(MIN_QUEUES_PER_CALL, MAX_PARTITIONS);
        let wants = upcoming.choose(params.wants, |want| self.has_shards(want));
        for wants in self.parts(&wants, queues_per_call) {
            let is_complete = self.claim_part(wants, params, &mut next_due, batch).await?;
            let has_more = next_due.is_some_and(|next| next <= batch.claimed.now);
            let is_full = batch.claimed.jobs.len() >= params.limit;
            // If none is known to be due, the other queues still tell `next_due`.
            if !is_complete || is_full && has_more {
                break;
            }
        }
        batch.claimed.next_due = next_due;
        Ok(())
    }

    /// Claims from all wanted queues, so that later claims can rely on the index. Returns whether
    /// all calls succeeded.
    async fn claim_from_all(
        &self,
        params: &ClaimParams<'_>,
        batch: &mut ClaimBatch,
    ) -> Result<bool> {
        let (mut next_due, mut is_complete) = (None, true);
        for wants in self.parts(params.wants, MAX_PARTITIONS) {
            is_complete = self.claim_part(wants, params, &mut next_due, batch).await?;
            if !is_complete {
                break;
            }
        }
        batch.claimed.next_due = next_due;
        Ok(is_complete)
    }

    /// Returns whether all calls succeeded.
    async fn claim_part(
        &self,
        wants: &[Want],
        params: &ClaimParams<'_>,
        next_due: &mut Option<Timestamp>,
        batch: &mut ClaimBatch,
    ) -> Result<bool> {
        let part = ClaimParams::new(wants, params.limit, params.worker);
        let is_complete = Claim::new(self, &part, true, batch).run().await?;
        *next_due = next_due.iter().copied().chain(batch.claimed.next_due).min();
        Ok(is_complete)
    }

    /// Cuts wants into one slice for each call. Sharded queues are apart, because calls with shards
    /// do not update the index.
    fn parts<'a>(&self, wants: &'a [Want], queues_per_call: usize) -> Vec<&'a [Want]> {
        let by_kind = wants.chunk_by(|a, b| self.has_shards(a) == self.has_shards(b));
        by_kind.flat_map(|part| part.chunks(queues_per_call)).collect()
    }

    fn has_shards(&self, want: &Want) -> bool {
        self.partitions.is_sharded(&want.queue)
            || self.shard_settings.for_queue(&want.queue).is_some()
    }

    /// `None` if the index cannot tell which queues are due.
    async fn upcoming(&self, index: &str) -> Result<Option<Upcoming>> {
        let index = index.to_owned();
        let mut call = self.scripts.queue_index.on_keys([&index]);
        call.arg(MAX_DUE).arg(MAX_LATER);
        let mut reply = Reply::new(call.run(&self.link).await?)?;
        let now = reply.time()?;
        if reply.is_empty() {
            return Ok(None);
        }
        let due = usize::try_from(reply.count()?).unwrap_or(MAX_DUE);
        if due >= MAX_DUE {
            return Ok(None);
        }
        let mut entries = HashMap::with_capacity(due);
        let mut add = |entry: &[u8], time| {
            if let Some(queue) = self.layout().indexed_queue(entry) {
                entries.insert(queue.to_owned(), time);
            }
        };
        for _ in 0..due {
            add(&reply.bytes()?, None);
        }
        let (mut later, mut last) = (0, None);
        while !reply.is_empty() {
            let entry = reply.bytes()?;
            last = Some(reply.number()?);
            add(&entry, last);
            later += 1;
        }
        Ok(Some(Upcoming { now, entries, rest: last.filter(|_| later == MAX_LATER) }))
    }
}
