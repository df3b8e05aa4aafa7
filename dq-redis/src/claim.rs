//! Claims due jobs.
//!
//! Each partition of a wanted queue becomes one *request*. A *group* is the requests that one
//! script call can serve: all on a single server, one slot's in a cluster. The script answers an
//! unusable partition with a *refusal*. A closed partition makes the claim look up the queue's
//! partitions again. A key of another type makes it *refuse* the queue and go on with the others.
//!
//! With one group, the script itself picks a queue's oldest jobs. With several slots, the claim
//! *peeks* first: it reads each slot's oldest due times concurrently, gives each partition a
//! *share*, and claims the shares concurrently. If nothing is due, that is one call per slot. If
//! another process takes a job in between, the claim returns fewer jobs, never later ones instead.

use std::sync::Arc;

use dq_core::sync::lock;
use dq_core::{
    ClaimParams, Claimed, Error, ErrorKind, FencingToken, LeasedJob, QueueName, Result, Timestamp,
    Want,
};
use futures_util::future::join_all;
use redis::Value;

use crate::args::millis_arg;
use crate::batch::CHUNK;
use crate::error::{self, unexpected};
use crate::keys::Partition;
use crate::record::{self, Numbers};
use crate::reply::{Refusal, Reply};
use crate::settle::UndecodableJob;
use crate::store::Store;

pub(crate) const CLAIM: &str = "claim";

/// Maximum record bytes per call, unless the first record is larger.
const CLAIM_BYTES: usize = 1024 * 1024;

/// As the byte limit: the script leases nothing and returns the due times of due jobs.
const PEEK: usize = 0;

/// As the job limit: the partition shares the limit of the previous one, which has the same queue.
const SAME_QUEUE: &str = "";

pub(crate) const MAX_PARTITIONS: usize = 200;

/// With more queues, a claim first reads which ones are due: see `queue_index.rs`.
const FEW_QUEUES: usize = 16;

#[derive(Debug)]
pub(crate) struct ClaimBatch {
    pub(crate) claimed: Claimed,
    /// Leased jobs whose record cannot be decoded.
    pub(crate) undecodable: Vec<UndecodableJob>,
    refused: Vec<(QueueName, Error)>,
}

impl ClaimBatch {
    fn new() -> Self {
        let claimed = Claimed::new(Vec::new(), None, Timestamp::EPOCH);
        Self { claimed, undecodable: Vec::new(), refused: Vec::new() }
    }

    fn leases(&self) -> usize {
        self.claimed.jobs.len() + self.undecodable.len()
    }

    fn is_refused(&self, queue: &QueueName) -> bool {
        self.refused.iter().any(|(name, _)| name == queue)
    }

    fn refuse(&mut self, queue: &QueueName, error: Error) {
        if !self.is_refused(queue) {
            self.refused.push((queue.clone(), error));
        }
    }
}

struct PartitionRequest<'a> {
    partition: Arc<Partition>,
    want: &'a Want,
    want_index: usize,
    /// When to claim again, from the last reply. At or before its `now` if more jobs are due.
    next: Option<Timestamp>,
}

struct Remaining {
    /// Jobs still wanted, by want.
    jobs: Vec<usize>,
    /// One closed partition per affected queue.
    closed: Vec<Arc<Partition>>,
    updates_index: bool,
}

/// One cluster slot, and the result of the last peek there.
struct SlotClaim<'a> {
    requests: Vec<PartitionRequest<'a>>,
    /// The oldest due jobs' due times, by request.
    dues: Vec<Vec<i64>>,
    shares: Vec<usize>,
    /// The clock of the slot's node, from the last reply.
    now: Timestamp,
}

impl<'a> SlotClaim<'a> {
    fn new(requests: Vec<PartitionRequest<'a>>) -> Self {
        Self { dues: Vec::new(), shares: Vec::new(), now: Timestamp::EPOCH, requests }
    }

    /// When to claim again, by another node's clock, which shows `now`. If that clock is ahead, a
    /// job looks due there before it is due here, and claims find nothing. Such a job gets the
    /// delay until it is due here.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.requests.iter().filter_map(|request| request.next).min()?;
        let due_there_only = next > self.now && next <= now;
        Some(if due_there_only { now + next.since(self.now) } else { next })
    }
}

impl Store {
    /// Leases due jobs. If a call fails after others have leased jobs, returns the leased jobs.
    ///
    /// # Errors
    /// A failed call, if no job was leased; a queue's error, if all queues are refused.
    pub(crate) async fn claim(&self, params: &ClaimParams<'_>) -> Result<ClaimBatch> {
        let mut batch = ClaimBatch::new();
        match self.partitions.layout.queue_index() {
            _ if params.wants.is_empty() => batch.claimed.now = self.now(CLAIM).await?,
            Some(index) if params.wants.len() > FEW_QUEUES => {
                self.claim_by_index(&index, params, &mut batch).await?;
            }
            _ => {
                self.claim_from_all(params, false, &mut batch).await?;
            }
        }
        self.report_refused(params.wants, &mut batch)?;
        Ok(batch)
    }

    /// Claims from all wanted queues. Returns `false` if a call failed after others had leased
    /// jobs; `next_due` is then `now`.
    ///
    /// # Errors
    /// A failed call, if no job was leased.
    pub(crate) async fn claim_from_all(
        &self,
        params: &ClaimParams<'_>,
        updates_index: bool,
        batch: &mut ClaimBatch,
    ) -> Result<bool> {
        let jobs = params.wants.iter().map(|want| want.max).collect();
        let mut remaining = Remaining { jobs, closed: Vec::new(), updates_index };
        let mut retries = self.reshard_retries();
        loop {
            let claimed = match retries.next(CLAIM).await {
                Ok(()) => self.claim_once(params, &mut remaining, batch).await,
                failed => failed,
            };
            match claimed {
                Ok(()) if remaining.closed.is_empty() => return Ok(true),
                Ok(()) => {}
                Err(error) if batch.claimed.jobs.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "Redis: a claim is incomplete");
                    batch.claimed.next_due = Some(batch.claimed.now);
                    return Ok(false);
                }
            }
        }
    }

    /// Reloads closed partitions, then claims. Adds newly closed ones to `remaining`.
    async fn claim_once(
        &self,
        params: &ClaimParams<'_>,
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Result<()> {
        for closed in std::mem::take(&mut remaining.closed) {
            let reloaded = self.reload(CLAIM, &closed).await;
            refuse_or_fail(&closed.queue, reloaded, batch)?;
        }
        let groups = self.groups(params.wants, batch).await?;
        let has_shards = groups.iter().flatten().any(|request| request.partition.shards > 1);
        if self.link.server().is_cluster() && groups.len() > 1 {
            let mut slots: Vec<_> = groups.into_iter().map(SlotClaim::new).collect();
            // Boxed because it is rare: the future of every claim stays small.
            Box::pin(self.claim_from_slots(params, &mut slots, remaining, batch)).await?;
        } else {
            self.claim_from_groups(params, groups, remaining, batch).await?;
        }
        if has_shards {
            sort_by_want(params.wants, &mut batch.claimed);
        }
        Ok(())
    }

    /// A cluster accepts keys of one slot only. Refuses queues whose partitions cannot be looked
    /// up.
    async fn groups<'a>(
        &self,
        wants: &'a [Want],
        batch: &mut ClaimBatch,
    ) -> Result<Vec<Vec<PartitionRequest<'a>>>> {
        let is_cluster = self.link.server().is_cluster();
        let mut groups: Vec<Vec<PartitionRequest<'_>>> = Vec::new();
        for (want_index, want) in wants.iter().enumerate() {
            if batch.is_refused(&want.queue) {
                continue;
            }
            let partitions = self.partitions_of(CLAIM, &want.queue).await;
            let Some(partitions) = refuse_or_fail(&want.queue, partitions, batch)? else {
                continue;
            };
            for partition in &partitions.all {
                let partition = Arc::clone(partition);
                let request = PartitionRequest { partition, want, want_index, next: None };
                let fits = |group: &&mut Vec<PartitionRequest<'_>>| {
                    let same_slot = group[0].partition.slot == request.partition.slot;
                    group.len() < MAX_PARTITIONS && (!is_cluster || same_slot)
                };
                match groups.iter_mut().find(fits) {
                    Some(group) => group.push(request),
                    None => groups.push(vec![request]),
                }
            }
        }
        Ok(groups)
    }

    /// Logs each refused queue once until it is served again.
    ///
    /// # Errors
    /// A queue's error if all wanted queues are refused.
    fn report_refused(&self, wants: &[Want], batch: &mut ClaimBatch) -> Result<()> {
        let mut logged = lock(&self.refused);
        logged.retain(|queue| {
            batch.is_refused(queue) || !wants.iter().any(|want| want.queue == *queue)
        });
        for (queue, error) in &batch.refused {
            if logged.insert(queue.clone()) {
                tracing::error!(%queue, %error, "Redis: this queue cannot be served");
            }
        }
        // Return jobs that were claimed before a queue was refused.
        if batch.claimed.jobs.is_empty()
            && wants.iter().all(|want| batch.is_refused(&want.queue))
            && let Some((_, error)) = batch.refused.pop()
        {
            return Err(error);
        }
        Ok(())
    }

    async fn claim_from_groups(
        &self,
        params: &ClaimParams<'_>,
        groups: Vec<Vec<PartitionRequest<'_>>>,
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Result<()> {
        let mut next_due = None;
        for mut group in groups {
            self.claim_from_group(&mut group, params, remaining, batch).await?;
            let next = group.iter().filter_map(|request| request.next).min();
            next_due = next_due.into_iter().chain(next).min();
        }
        batch.claimed.next_due = next_due;
        Ok(())
    }

    async fn claim_from_group(
        &self,
        group: &mut [PartitionRequest<'_>],
        params: &ClaimParams<'_>,
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Result<()> {
        loop {
            let limit_left = params.limit.saturating_sub(batch.claimed.jobs.len());
            let mut call = self.scripts.claim.on(group.iter().map(|request| &*request.partition));
            call.arg(limit_left.min(CHUNK)).arg(CLAIM_BYTES).arg(worker_arg(params.worker));
            let mut previous = None;
            for request in &*group {
                if previous == Some(request.want_index) {
                    call.arg(SAME_QUEUE);
                } else {
                    call.arg(remaining.jobs[request.want_index]);
                }
                call.arg(millis_arg(request.want.lease_for));
                previous = Some(request.want_index);
            }
            // The index does not contain shards.
            let is_indexed = group.iter().all(|request| request.partition.queue_index.is_some());
            call.arg(u8::from(remaining.updates_index && is_indexed));
            let answer = call.run(&self.link, CLAIM).await?;
            let before = batch.leases();
            if self.read_claimed(answer, group, remaining, batch).is_none() {
                return unexpected(CLAIM);
            }
            // Do not repeat a call that leases nothing although jobs are due: the runner claims
            // again.
            let leased_nothing = batch.leases() == before;
            let claimed = &batch.claimed;
            let has_more = |request: &PartitionRequest<'_>| {
                remaining.jobs[request.want_index] > 0
                    && request.next.is_some_and(|next| next <= claimed.now)
            };
            if leased_nothing || claimed.jobs.len() >= params.limit || !group.iter().any(has_more) {
                return Ok(());
            }
        }
    }

    async fn claim_from_slots(
        &self,
        params: &ClaimParams<'_>,
        slots: &mut [SlotClaim<'_>],
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Result<()> {
        let mut latest = None;
        loop {
            let before = batch.leases();
            let limit = params.limit.saturating_sub(batch.claimed.jobs.len()).min(CHUNK);
            self.peek_slots(slots, limit, remaining, batch).await?;
            set_shares(slots, limit, &remaining.jobs);
            let chosen: Vec<&mut SlotClaim<'_>> = slots
                .iter_mut()
                .filter(|slot| slot.shares.iter().any(|share| *share > 0))
                .collect();
            let worker = params.worker;
            let calls = chosen
                .iter()
                .map(|slot| self.call_slot(slot, limit, CLAIM_BYTES, worker, &slot.shares));
            let answers = join_all(calls).await;
            let mut failed = None;
            for (slot, answer) in chosen.into_iter().zip(answers) {
                let read = match answer {
                    Ok(answer) => self.read_claimed(answer, &mut slot.requests, remaining, batch),
                    Err(error) => {
                        failed = Some(error);
                        continue;
                    }
                };
                if read.is_none() {
                    return unexpected(CLAIM);
                }
                slot.now = batch.claimed.now;
                latest = latest.max(Some(slot.now));
            }
            let leased_nothing = batch.leases() == before;
            let now = latest.or(slots.iter().map(|slot| slot.now).max());
            batch.claimed.now = now.unwrap_or(batch.claimed.now);
            if let Some(error) = failed {
                return Err(error);
            }
            let has_more = |slot: &SlotClaim<'_>| {
                slot.requests.iter().any(|request| {
                    remaining.jobs[request.want_index] > 0
                        && request.next.is_some_and(|next| next <= slot.now)
                })
            };
            let is_full = batch.claimed.jobs.len() >= params.limit;
            if leased_nothing || is_full || !slots.iter().any(has_more) {
                let now = batch.claimed.now;
                let next = slots.iter().filter_map(|slot| slot.next_due(now)).min();
                batch.claimed.next_due = next;
                return Ok(());
            }
        }
    }

    /// Peeks at each slot. A failed slot does not affect the others.
    ///
    /// # Errors
    /// A slot's error, if no other slot has due jobs.
    async fn peek_slots(
        &self,
        slots: &mut [SlotClaim<'_>],
        limit: usize,
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Result<()> {
        let wanted = |slot: &SlotClaim<'_>| -> Vec<usize> {
            slot.requests.iter().map(|request| remaining.jobs[request.want_index]).collect()
        };
        let wanted: Vec<_> = slots.iter().map(wanted).collect();
        let calls = slots
            .iter()
            .zip(&wanted)
            .map(|(slot, wanted)| self.call_slot(slot, limit, PEEK, "", wanted));
        let answers = join_all(calls).await;
        let (mut any_due, mut failed) = (false, None);
        for (slot, answer) in slots.iter_mut().zip(answers) {
            slot.dues = vec![Vec::new(); slot.requests.len()];
            match answer {
                Ok(answer) => {
                    if self.read_peeked(answer, slot, remaining, batch).is_none() {
                        return unexpected(CLAIM);
                    }
                    any_due |= slot.dues.iter().any(|dues| !dues.is_empty());
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !any_due => Err(error),
            Some(error) => {
                tracing::warn!(%error, "Redis: the claim of some shards failed");
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn call_slot(
        &self,
        slot: &SlotClaim<'_>,
        limit: usize,
        max_bytes: usize,
        worker: &str,
        max_jobs: &[usize],
    ) -> Result<Value> {
        let partitions = slot.requests.iter().map(|request| &*request.partition);
        let mut call = self.scripts.claim.on(partitions);
        call.arg(limit).arg(max_bytes).arg(worker_arg(worker));
        for (request, max) in slot.requests.iter().zip(max_jobs) {
            call.arg(*max).arg(millis_arg(request.want.lease_for));
        }
        call.arg(0);
        call.run(&self.link, CLAIM).await
    }

    fn read_claimed(
        &self,
        answer: Value,
        requests: &mut [PartitionRequest<'_>],
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Option<()> {
        let mut reply = Reply::new(answer)?;
        batch.claimed.now = Timestamp::from_millis(reply.number()?);
        for request in requests {
            request.next = None;
            match reply.list_or_refusal()? {
                Ok(partition) => {
                    let leased = self.read_partition(partition, request, batch)?;
                    let jobs = &mut remaining.jobs[request.want_index];
                    *jobs = jobs.saturating_sub(leased);
                }
                Err(refusal) => self.read_refusal(refusal, request, remaining, batch)?,
            }
        }
        Some(())
    }

    /// Returns the lease count.
    fn read_partition(
        &self,
        mut reply: Reply,
        request: &mut PartitionRequest<'_>,
        batch: &mut ClaimBatch,
    ) -> Option<usize> {
        request.next = reply.number_or_nil()?.map(Timestamp::from_millis);
        if reply.is_empty() {
            return Some(0);
        }
        let leased_until = Timestamp::from_millis(reply.number()?);
        let first = u64::try_from(reply.number()?).ok()?;
        let mut token = first;
        let Partition { queue, shards, shard, .. } = &*request.partition;
        while !reply.is_empty() {
            let (handle, due) = (reply.bytes()?, reply.number()?);
            let record = reply.bytes()?;
            let numbers = Numbers::decode(&reply.bytes()?);
            match record::decode(queue, &handle, &record, due, numbers) {
                Some(mut job) => {
                    job.deliveries += 1;
                    if *shards > 1 {
                        self.leases.insert(queue, job.id, *shard);
                    }
                    let token = FencingToken(token);
                    batch.claimed.jobs.push(LeasedJob::new(job, token, leased_until));
                }
                None => batch.undecodable.push(UndecodableJob {
                    job: record::undecodable(queue, &handle, &record, due, numbers)?,
                    shard: *shard,
                    token,
                }),
            }
            token += 1;
        }
        usize::try_from(token - first).ok()
    }

    fn read_peeked(
        &self,
        answer: Value,
        slot: &mut SlotClaim<'_>,
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Option<()> {
        let mut reply = Reply::new(answer)?;
        slot.now = Timestamp::from_millis(reply.number()?);
        for (request, dues) in slot.requests.iter_mut().zip(&mut slot.dues) {
            request.next = None;
            match reply.list_or_refusal()? {
                Ok(mut peeked) => {
                    request.next = peeked.number_or_nil()?.map(Timestamp::from_millis);
                    while !peeked.is_empty() {
                        dues.push(peeked.number()?);
                    }
                }
                Err(refusal) => self.read_refusal(refusal, request, remaining, batch)?,
            }
        }
        Some(())
    }

    /// `None` for a refusal unknown to the claim script.
    fn read_refusal(
        &self,
        refusal: Refusal,
        request: &PartitionRequest<'_>,
        remaining: &mut Remaining,
        batch: &mut ClaimBatch,
    ) -> Option<()> {
        let partition = &request.partition;
        match refusal {
            Refusal::Closed => {
                let is_same = |closed: &Arc<Partition>| closed.queue == partition.queue;
                if !remaining.closed.iter().any(is_same) {
                    remaining.closed.push(Arc::clone(partition));
                }
            }
            Refusal::WrongType => {
                let origin = self.link.server().origin();
                batch.refuse(&partition.queue, error::wrong_type(CLAIM, &origin, &partition.queue));
            }
            Refusal::Format => batch.refuse(&partition.queue, error::too_old(CLAIM)),
            Refusal::IdCollision(_) => return None,
        }
        Some(())
    }
}

/// Refuses the queue if the error concerns it alone: its shard count, or a key of another type.
///
/// # Errors
/// Any other error.
fn refuse_or_fail<T>(
    queue: &QueueName,
    result: Result<T>,
    batch: &mut ClaimBatch,
) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Incompatible) => {
            batch.refuse(queue, error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The lease holder's name, cut to 255 bytes: a note has one byte for the length.
fn worker_arg(worker: &str) -> &str {
    let end = (0..=worker.len().min(255)).rev().find(|end| worker.is_char_boundary(*end));
    &worker[..end.unwrap_or(0)]
}

fn sort_by_want(wants: &[Want], claimed: &mut Claimed) {
    let index = |job: &LeasedJob| wants.iter().position(|want| want.queue == job.job.queue);
    claimed.jobs.sort_by_cached_key(|job| (index(job), job.job.due, job.job.id));
}

/// Sets all shares: the oldest jobs of each want, earlier wants first.
fn set_shares(slots: &mut [SlotClaim<'_>], limit: usize, wanted: &[usize]) {
    let mut due_jobs = vec![Vec::new(); wanted.len()];
    for (s, slot) in slots.iter_mut().enumerate() {
        slot.shares = vec![0; slot.requests.len()];
        for (r, (request, dues)) in slot.requests.iter().zip(&slot.dues).enumerate() {
            due_jobs[request.want_index].extend(dues.iter().map(|due| (*due, s, r)));
        }
    }
    let mut limit = limit;
    for (mut due_jobs, wanted) in due_jobs.into_iter().zip(wanted) {
        due_jobs.sort_unstable();
        let taken = due_jobs.len().min(*wanted).min(limit);
        limit -= taken;
        for (_, s, r) in &due_jobs[..taken] {
            slots[*s].shares[*r] += 1;
        }
    }
}
