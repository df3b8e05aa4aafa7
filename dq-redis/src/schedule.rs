//! Schedule, cancel and reschedule.

use dq_core::sync::lock;
use dq_core::{
    Cancelled, Error, JobRef, NewJob, QueueName, Receipt, Reschedule, Rescheduled, Result,
    Scheduled, Timestamp, async_trait,
};
use redis::Value;

use crate::args::{add_jobs, due_arg, target_arg};
use crate::batch::{Chunk, Item, JOB_BYTES, read_letters};
use crate::error::{unexpected, unsupported};
use crate::handle::{self, HANDLE_BYTES};
use crate::record;
use crate::reply::{Refusal, Reply};
use crate::script::{Call, Script, Scripts};
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::QueuePartitions;
use crate::store::RedisBackend;

impl RedisBackend {
    /// Errors: `Unsupported` for a conflict policy from a newer `dq-core`. `InvalidInput` for an id
    /// whose handle another job has; jobs in other chunks may have been stored. `Config` if the
    /// shard count has changed; this call's jobs may have been stored.
    pub(crate) async fn store_jobs(&self, jobs: &[NewJob]) -> Result<Vec<Scheduled>> {
        if let Some(job) = jobs.iter().find(|job| record::policy(job.on_conflict).is_none()) {
            return Err(unsupported(format!("the conflict policy {:?}", job.on_conflict)));
        }
        self.register(jobs.iter().map(|job| &job.queue)).await?;
        let pinned = self.find_pinned(jobs).await?;
        if pinned.is_empty() {
            return self.run_batch(jobs).await;
        }
        let others: Vec<_> =
            jobs.iter().filter(|job| !pinned.contains_key(&job.id)).cloned().collect();
        let mut answers = self.run_batch(&others).await?.into_iter();
        let answer = |job: &NewJob| match pinned.get(&job.id) {
            Some(receipt) => Some(Scheduled::Ended(*receipt)),
            None => answers.next(),
        };
        Ok(jobs.iter().filter_map(answer).collect())
    }
}

#[async_trait]
impl Item for NewJob {
    type Answer = Scheduled;

    const IS_NEW: bool = true;

    fn queue(&self) -> &QueueName {
        &self.queue
    }

    fn size_bytes(&self) -> usize {
        JOB_BYTES + self.payload.len() + self.headers.size_bytes()
    }

    fn shards(&self, partitions: &QueuePartitions, _: &LeaseShards) -> (u16, Vec<u16>) {
        (partitions.shard_for(self.id, self.key.as_ref()), Vec::new())
    }

    /// `find_pinned` has asked the other shards.
    fn is_absent(_: &Scheduled) -> bool {
        false
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.schedule
    }

    fn add_arguments(
        backend: &RedisBackend,
        chunk: &Chunk<'_, Self>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        call.arg(&chunk.partition.channel);
        let (now, history) = (backend.estimated_time(), backend.history_args(&chunk.partition));
        add_jobs(call, backend.layout(), &chunk.items, now, history);
        Ok(())
    }

    async fn read(
        backend: &RedisBackend,
        reply: Value,
        chunk: &Chunk<'_, Self>,
    ) -> Result<Vec<Scheduled>> {
        if let Some(Refusal::IdCollision(number)) = Refusal::read(&reply) {
            return Err(id_collision(chunk, number));
        }
        if let Some(error) = backend.layout().refusal(&reply) {
            return Err(error);
        }
        let mut reply = Reply::new(reply)?;
        let now = reply.time()?;
        *lock(&backend.last_time) = Some((backend.link.clock().elapsed(), now));
        let is_first = reply.number()? == 1;
        let results = read_scheduled(&mut reply, chunk, now)?;
        if is_first {
            // The partition is new or the server was emptied: the queue's name and shard count may
            // be missing. Boxed because it is rare.
            Box::pin(backend.restore_queue(&chunk.partition)).await?;
        }
        Ok(results)
    }
}

/// The reply lists only jobs that were not simply created.
fn read_scheduled(
    reply: &mut Reply,
    chunk: &Chunk<'_, NewJob>,
    now: Timestamp,
) -> Result<Vec<Scheduled>> {
    let created =
        |job: &&NewJob| Scheduled::Created(Receipt { id: job.id, due: job.due.resolve(now) });
    let mut results: Vec<Scheduled> = chunk.items.iter().map(created).collect();
    while !reply.is_empty() {
        let number = usize::try_from(reply.number()?).unwrap_or(0);
        let code = reply.bytes()?;
        let receipt = read_receipt(reply)?;
        let result = number.checked_sub(1).and_then(|index| results.get_mut(index));
        *result.ok_or_else(unexpected)? = match &code[..] {
            b"C" => Scheduled::Created(receipt),
            b"E" => Scheduled::Ended(receipt),
            b"K" => Scheduled::Kept(receipt),
            b"R" => Scheduled::Replaced(receipt),
            b"A" => Scheduled::AlreadyRunning(receipt),
            _ => return Err(unexpected()),
        };
    }
    Ok(results)
}

fn read_receipt(reply: &mut Reply) -> Result<Receipt> {
    let (id, due) = (reply.bytes()?, reply.time()?);
    let id = id.split_at_checked(HANDLE_BYTES).and_then(|(handle, tail)| handle::id(handle, tail));
    Ok(Receipt { id: id.ok_or_else(unexpected)?, due })
}

fn id_collision(chunk: &Chunk<'_, NewJob>, number: usize) -> Error {
    let Some(job) = number.checked_sub(1).and_then(|index| chunk.items.get(index)) else {
        return unexpected();
    };
    Error::invalid(format!(
        "the id {} of a job for queue {} collides with the id of another job there: the two share \
         the 14 bytes by which Redis stores a job",
        job.id, job.queue
    ))
    .remedy("let the client make the ids, or use random ones")
}

#[async_trait]
impl Item for JobRef {
    type Answer = Cancelled;

    fn queue(&self) -> &QueueName {
        &self.queue
    }

    fn shards(&self, partitions: &QueuePartitions, _: &LeaseShards) -> (u16, Vec<u16>) {
        partitions.candidates(&self.target)
    }

    fn is_absent(answer: &Cancelled) -> bool {
        *answer == Cancelled::NotFound
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.cancel
    }

    fn add_arguments(
        backend: &RedisBackend,
        chunk: &Chunk<'_, Self>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        call.arg(backend.history_args(&chunk.partition));
        for job in &chunk.items {
            call.arg(target_arg(&job.target));
        }
        Ok(())
    }

    async fn read(
        _: &RedisBackend,
        reply: Value,
        chunk: &Chunk<'_, Self>,
    ) -> Result<Vec<Cancelled>> {
        read_letters(reply, chunk, |letter| match letter {
            b'C' => Cancelled::Cancelled,
            b'A' => Cancelled::AlreadyRunning,
            _ => Cancelled::NotFound,
        })
    }
}

#[async_trait]
impl Item for Reschedule {
    type Answer = Rescheduled;

    fn queue(&self) -> &QueueName {
        &self.job.queue
    }

    fn shards(&self, partitions: &QueuePartitions, _: &LeaseShards) -> (u16, Vec<u16>) {
        partitions.candidates(&self.job.target)
    }

    fn is_absent(answer: &Rescheduled) -> bool {
        *answer == Rescheduled::NotFound
    }

    fn script(scripts: &Scripts) -> &Script {
        &scripts.reschedule
    }

    fn add_arguments(_: &RedisBackend, chunk: &Chunk<'_, Self>, call: &mut Call<'_>) -> Result<()> {
        call.arg(&chunk.partition.channel);
        for reschedule in &chunk.items {
            call.arg(target_arg(&reschedule.job.target)).arg(due_arg(reschedule.due));
        }
        Ok(())
    }

    async fn read(
        _: &RedisBackend,
        reply: Value,
        chunk: &Chunk<'_, Self>,
    ) -> Result<Vec<Rescheduled>> {
        let mut reply = Reply::new(reply)?;
        chunk.items.iter().map(|_| read_rescheduled(&mut reply)).collect()
    }
}

fn read_rescheduled(reply: &mut Reply) -> Result<Rescheduled> {
    let code = reply.bytes()?;
    if code == "M" {
        return read_receipt(reply).map(Rescheduled::Moved);
    }
    let (_no_id, _no_due) = (reply.bytes()?, reply.number()?);
    match &code[..] {
        b"A" => Ok(Rescheduled::AlreadyRunning),
        b"N" => Ok(Rescheduled::NotFound),
        _ => Err(unexpected()),
    }
}
