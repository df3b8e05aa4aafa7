//! Claims due jobs.
//!
//! Each partition of a wanted queue becomes one *request*. A *group* is the requests that one
//! script call can serve: all on a single server, one slot's in a cluster (see `slots.rs`). The
//! script answers an unusable partition with a *refusal*. A closed partition makes the claim look
//! up the queue's partitions again. A key of another type makes it *refuse* the queue and go on
//! with the others.

mod slots;

use std::sync::Arc;

use dq_core::sync::lock;
use dq_core::{
    ClaimParams, Claimed, Error, ErrorKind, FencingToken, LeasedJob, QueueName, Result, Timestamp,
    Want,
};
use redis::Value;

use crate::args::millis_arg;
use crate::batch::CHUNK;
use crate::error::{self, unexpected};
use crate::keys::Partition;
use crate::record::{self, Numbers};
use crate::reply::{Refusal, Reply};
use crate::settle::UndecodableJob;
use crate::store::RedisBackend;

/// Maximum record bytes per call, unless the first record is larger.
const CLAIM_BYTES: usize = 1024 * 1024;

pub(crate) const MAX_PARTITIONS: usize = 200;

/// A claim from more queues first reads which ones are due: see `queue_index.rs`.
const FEW_QUEUES: usize = 16;

#[derive(Debug)]
pub(crate) struct ClaimBatch {
    pub(crate) claimed: Claimed,
    pub(crate) undecodable: Vec<UndecodableJob>,
    refused: Vec<(QueueName, Error)>,
}

impl ClaimBatch {
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

    /// Refuses the queue if the error concerns it alone: its shard count, or a key of another type.
    /// Errors: Any other error.
    fn refuse_or_fail<T>(&mut self, queue: &QueueName, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Incompatible) => {
                self.refuse(queue, error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

struct PartitionRequest<'a> {
    partition: Arc<Partition>,
    want: &'a Want,
    want_index: usize,
    /// When to claim again. At or before the reply's `now` if more jobs are due.
    next: Option<Timestamp>,
}

impl RedisBackend {
    /// Leases due jobs. If a call fails after others have leased jobs, returns the leased jobs.
    /// Errors: A failed call, if no job was leased; a queue's error, if all queues are refused.
    pub(crate) async fn claim_batch(&self, params: &ClaimParams<'_>) -> Result<ClaimBatch> {
        let claimed = Claimed::new(Vec::new(), None, Timestamp::EPOCH);
        let mut batch = ClaimBatch { claimed, undecodable: Vec::new(), refused: Vec::new() };
        match self.layout().queue_index() {
            _ if params.wants.is_empty() => batch.claimed.now = self.server_time().await?,
            Some(index) if params.wants.len() > FEW_QUEUES => {
                self.claim_by_index(&index, params, &mut batch).await?;
            }
            _ => {
                Claim::new(self, params, false, &mut batch).run().await?;
            }
        }
        self.report_refused(params.wants, &mut batch)?;
        Ok(batch)
    }

    /// Logs each refused queue once until it is served again.
    /// Errors: A queue's error if all wanted queues are refused.
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
        let has_jobs = !batch.claimed.jobs.is_empty();
        let is_any_served = wants.iter().any(|want| !batch.is_refused(&want.queue));
        match batch.refused.pop() {
            // Jobs may have been claimed before their queue was refused.
            Some((_, error)) if !has_jobs && !is_any_served => Err(error),
            _ => Ok(()),
        }
    }
}

pub(crate) struct Claim<'a> {
    backend: &'a RedisBackend,
    params: &'a ClaimParams<'a>,
    updates_index: bool,
    batch: &'a mut ClaimBatch,
    /// The rest of each want's maximum, and of how many would start at once.
    wanted: Vec<usize>,
    starting: Vec<usize>,
    closed: Vec<Arc<Partition>>,
}

impl<'a> Claim<'a> {
    pub(crate) fn new(
        backend: &'a RedisBackend,
        params: &'a ClaimParams<'a>,
        updates_index: bool,
        batch: &'a mut ClaimBatch,
    ) -> Self {
        let wanted = params.wants.iter().map(|want| want.max).collect();
        let starting = params.wants.iter().map(|want| want.starting).collect();
        Self { backend, params, updates_index, batch, wanted, starting, closed: Vec::new() }
    }

    /// Returns `false` if a call failed after others had leased jobs; `next_due` is then `now`.
    /// Errors: A failed call, if no job was leased.
    pub(crate) async fn run(mut self) -> Result<bool> {
        let mut attempts = self.backend.attempts();
        loop {
            let claimed = match attempts.next().await {
                Ok(()) => self.claim_once().await,
                failed => failed,
            };
            match claimed {
                Ok(()) if self.closed.is_empty() => return Ok(true),
                Ok(()) => {}
                Err(error) if self.batch.claimed.jobs.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "Redis: a claim is incomplete");
                    self.batch.claimed.next_due = Some(self.batch.claimed.now);
                    return Ok(false);
                }
            }
        }
    }

    async fn claim_once(&mut self) -> Result<()> {
        for closed in std::mem::take(&mut self.closed) {
            let reloaded = self.backend.reload(&closed).await;
            self.batch.refuse_or_fail(&closed.queue, reloaded)?;
        }
        let groups = self.groups().await?;
        let has_shards = groups.iter().flatten().any(|request| request.partition.shards > 1);
        if self.backend.link.server().is_cluster() && groups.len() > 1 {
            // Boxed because it is rare: the future of every claim stays small.
            Box::pin(self.claim_from_slots(groups)).await?;
        } else {
            self.claim_from_groups(groups).await?;
        }
        if has_shards {
            let wants = self.params.wants;
            let want_index =
                |job: &LeasedJob| wants.iter().position(|want| want.queue == job.job.queue);
            let jobs = &mut self.batch.claimed.jobs;
            jobs.sort_by_cached_key(|job| (want_index(job), job.job.due, job.job.id));
        }
        Ok(())
    }

    /// A group contains one slot in a cluster, which accepts keys of one slot only; else whole
    /// queues, so that a script counts all running jobs of one. Refuses queues if their partitions
    /// cannot be looked up.
    async fn groups(&mut self) -> Result<Vec<Vec<PartitionRequest<'a>>>> {
        let is_cluster = self.backend.link.server().is_cluster();
        let mut groups: Vec<Vec<PartitionRequest<'_>>> = Vec::new();
        for (want_index, want) in self.params.wants.iter().enumerate() {
            if self.batch.is_refused(&want.queue) {
                continue;
            }
            let partitions = self.backend.partitions_of(&want.queue).await;
            let Some(partitions) = self.batch.refuse_or_fail(&want.queue, partitions)? else {
                continue;
            };
            for partition in &partitions.all {
                let partition = Arc::clone(partition);
                let request = PartitionRequest { partition, want, want_index, next: None };
                let fits = |group: &&mut Vec<PartitionRequest<'_>>| {
                    let same_slot = group[0].partition.slot == request.partition.slot;
                    let same_queue = group.last().is_some_and(|last| last.want_index == want_index);
                    match is_cluster {
                        true => group.len() < MAX_PARTITIONS && same_slot,
                        false => same_queue || group.len() + partitions.all.len() <= MAX_PARTITIONS,
                    }
                };
                match groups.iter_mut().find(fits) {
                    Some(group) => group.push(request),
                    None => groups.push(vec![request]),
                }
            }
        }
        Ok(groups)
    }

    async fn claim_from_groups(&mut self, groups: Vec<Vec<PartitionRequest<'_>>>) -> Result<()> {
        let mut next_due = None;
        for mut group in groups {
            self.claim_from_group(&mut group).await?;
            let next = group.iter().filter_map(|request| request.next).min();
            next_due = next_due.into_iter().chain(next).min();
        }
        self.batch.claimed.next_due = next_due;
        Ok(())
    }

    async fn claim_from_group(&mut self, group: &mut [PartitionRequest<'_>]) -> Result<()> {
        loop {
            let mut previous = None;
            let max_jobs = group.iter().map(|request| {
                let is_first = previous.replace(request.want_index) != Some(request.want_index);
                is_first.then_some(self.wanted[request.want_index])
            });
            let max_jobs: Vec<_> = max_jobs.collect();
            let is_indexed = group.iter().all(|request| request.partition.queue_index.is_some());
            let updates_index = self.updates_index && is_indexed;
            let reply = self.call(group, CLAIM_BYTES, max_jobs, updates_index).await?;
            let before = self.batch.leases();
            self.read_claimed(reply, group)?;
            if !self.goes_on(before, self.has_more(group, self.batch.claimed.now)) {
                return Ok(());
            }
        }
    }

    fn limit(&self) -> usize {
        self.params.limit.saturating_sub(self.batch.claimed.jobs.len()).min(CHUNK)
    }

    fn has_more(&self, requests: &[PartitionRequest<'_>], now: Timestamp) -> bool {
        let is_due = |request: &PartitionRequest<'_>| {
            let is_wanted =
                self.wanted[request.want_index].min(self.starting[request.want_index]) > 0;
            is_wanted && request.next.is_some_and(|next| next <= now)
        };
        requests.iter().any(is_due)
    }

    /// A call that leases nothing although jobs are due is not repeated: the runner claims again.
    fn goes_on(&self, leases_before: usize, has_more: bool) -> bool {
        let is_full = self.batch.claimed.jobs.len() >= self.params.limit;
        has_more && !is_full && self.batch.leases() > leases_before
    }

    /// `max_jobs` is `None` for a request that shares the previous one's number, in the same queue.
    async fn call(
        &self,
        requests: &[PartitionRequest<'_>],
        max_bytes: usize,
        max_jobs: impl IntoIterator<Item = Option<usize>>,
        updates_index: bool,
    ) -> Result<Value> {
        let partitions = requests.iter().map(|request| &*request.partition);
        let mut call = self.backend.scripts.claim.on(partitions);
        call.arg(self.limit()).arg(max_bytes).arg(worker_arg(self.params.worker));
        for (request, max) in requests.iter().zip(max_jobs) {
            call.arg(max.map_or_else(String::new, |max| max.to_string()));
            call.arg(self.starting[request.want_index]);
            call.arg(millis_arg(request.want.lease_for));
        }
        call.arg(u8::from(updates_index));
        call.run(&self.backend.link).await
    }

    fn read_claimed(&mut self, reply: Value, requests: &mut [PartitionRequest<'_>]) -> Result<()> {
        let mut reply = Reply::new(reply)?;
        self.batch.claimed.now = reply.time()?;
        for request in requests {
            request.next = None;
            match reply.list_or_refusal()? {
                Ok(partition) => {
                    let leased = self.read_partition(partition, request)?;
                    for rest in [&mut self.wanted, &mut self.starting] {
                        let rest = &mut rest[request.want_index];
                        *rest = rest.saturating_sub(leased);
                    }
                }
                Err(refusal) => self.take_refusal(refusal, request)?,
            }
        }
        Ok(())
    }

    /// Returns how many jobs were leased.
    fn read_partition(
        &mut self,
        mut reply: Reply,
        request: &mut PartitionRequest<'_>,
    ) -> Result<usize> {
        request.next = reply.time_or_nil()?;
        if reply.is_empty() {
            return Ok(0);
        }
        let leased_until = reply.time()?;
        let mut token = reply.count()?;
        let before = self.batch.leases();
        let Partition { queue, shards, shard, .. } = &*request.partition;
        while !reply.is_empty() {
            let (handle, due) = (reply.bytes()?, reply.number()?);
            let record = reply.bytes()?;
            let numbers = Numbers::decode(&reply.bytes()?);
            match record::decode(queue, &handle, &record, due, numbers) {
                Some(mut job) => {
                    job.deliveries += 1;
                    if *shards > 1 {
                        self.backend.leases.insert(queue, job.id, *shard);
                    }
                    let leased = LeasedJob::new(job, FencingToken(token), leased_until);
                    self.batch.claimed.jobs.push(leased);
                }
                None => {
                    let job = record::undecodable(queue, &handle, &record, due, numbers)
                        .ok_or_else(unexpected)?;
                    let undecodable = UndecodableJob { job, shard: *shard, token };
                    self.batch.undecodable.push(undecodable);
                }
            }
            token += 1;
        }
        Ok(self.batch.leases() - before)
    }

    fn take_refusal(&mut self, refusal: Refusal, request: &PartitionRequest<'_>) -> Result<()> {
        let partition = &request.partition;
        match refusal {
            Refusal::Closed => {
                let is_same = |closed: &Arc<Partition>| closed.queue == partition.queue;
                if !self.closed.iter().any(is_same) {
                    self.closed.push(Arc::clone(partition));
                }
            }
            Refusal::WrongType => {
                let origin = self.backend.link.server().origin();
                let error = error::wrong_type(&origin, &partition.queue);
                self.batch.refuse(&partition.queue, error);
            }
            Refusal::Format => self.batch.refuse(&partition.queue, error::too_old()),
            Refusal::IdCollision(_) => return Err(unexpected()),
        }
        Ok(())
    }
}

/// The lease holder's name, cut to 255 bytes: a note has one byte for the length.
fn worker_arg(worker: &str) -> &str {
    let end = (0..=worker.len().min(255)).rev().find(|end| worker.is_char_boundary(*end));
    &worker[..end.unwrap_or(0)]
}
