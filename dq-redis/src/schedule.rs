//! Schedule, cancel and reschedule.

use bytes::Bytes;
use dq_core::{
    Cancelled, Error, JobRef, NewJob, Receipt, Reschedule, Rescheduled, Result, Scheduled,
    Timestamp,
};
use redis::Value;

use crate::args::{add_jobs, due_arg, target_arg};
use crate::batch::Chunk;
use crate::error::unexpected;
use crate::handle::{self, HANDLE_BYTES};
use crate::record;
use crate::reply::{self, Refusal, Reply};
use crate::store::Store;

const SCHEDULE: &str = "schedule";
const CANCEL: &str = "cancel";
const RESCHEDULE: &str = "reschedule";

impl Store {
    /// Stores jobs. The conflict policy decides whether a job replaces a stored one with its id or
    /// key.
    ///
    /// # Errors
    /// `Unsupported` for a conflict policy from a newer `dq-core`. `InvalidInput` for an id whose
    /// handle another job has; jobs in other chunks may have been stored. `Config` if the shard
    /// count has changed; this call's jobs may have been stored.
    pub(crate) async fn schedule<'a>(&'a self, jobs: &'a [NewJob]) -> Result<Vec<Scheduled>> {
        if let Some(job) = jobs.iter().find(|job| record::policy(job.on_conflict).is_none()) {
            let feature = format!("the conflict policy {:?}", job.on_conflict);
            return Err(Error::unsupported("redis", &feature).operation(SCHEDULE));
        }
        self.register(SCHEDULE, jobs.iter().map(|job| &job.queue)).await?;
        let pinned = self.find_pinned(jobs).await?;
        if pinned.is_empty() {
            return self.store_jobs(jobs).await;
        }
        let others: Vec<_> =
            jobs.iter().filter(|job| !pinned.contains_key(&job.id)).cloned().collect();
        let mut answers = self.store_jobs(&others).await?.into_iter();
        let answer = |job: &NewJob| match pinned.get(&job.id) {
            Some(receipt) => Some(Scheduled::Ended(*receipt)),
            None => answers.next(),
        };
        Ok(jobs.iter().filter_map(answer).collect())
    }

    /// Other shards have no pin for these ids.
    async fn store_jobs<'a>(&'a self, jobs: &'a [NewJob]) -> Result<Vec<Scheduled>> {
        self.route(SCHEDULE, jobs, |_| false, |chunk| Box::pin(self.schedule_chunk(chunk))).await
    }

    async fn schedule_chunk(&self, chunk: Chunk<'_, NewJob>) -> Result<Option<Vec<Scheduled>>> {
        let mut call = self.scripts.schedule.on([&*chunk.partition]);
        call.arg(&chunk.partition.channel);
        let history = self.history_args(&chunk.partition);
        let layout = &*self.partitions.layout;
        add_jobs(&mut call, layout, &chunk.items, self.clock.estimate(), history);
        let sent_at = self.clock.elapsed();
        let Some(answer) = self.run_on(SCHEDULE, &chunk.partition, call).await? else {
            return Ok(None);
        };
        if let Some(Refusal::IdCollision(number)) = Refusal::read(&answer) {
            return id_collision(&chunk, number);
        }
        if let Some(error) = layout.refusal(&answer) {
            return Err(error);
        }
        let Some(ScheduleReply { now, is_first, results }) = read_scheduled(answer, &chunk) else {
            return unexpected(SCHEDULE);
        };
        self.clock.observe(sent_at, now);
        if is_first {
            // The partition is new or the server was emptied: the queue's name and shard count may
            // be missing. Boxed because it is rare.
            Box::pin(self.restore_queue(SCHEDULE, &chunk.partition)).await?;
        }
        Ok(Some(results))
    }

    /// Cancels waiting jobs; running jobs go on.
    pub(crate) async fn cancel<'a>(&'a self, jobs: &'a [JobRef]) -> Result<Vec<Cancelled>> {
        let is_absent = |answer: &Cancelled| *answer == Cancelled::NotFound;
        self.route(CANCEL, jobs, is_absent, |chunk| Box::pin(self.cancel_chunk(chunk))).await
    }

    async fn cancel_chunk(&self, chunk: Chunk<'_, JobRef>) -> Result<Option<Vec<Cancelled>>> {
        let mut call = self.scripts.cancel.on([&*chunk.partition]);
        let (max, age) = self.history_args(&chunk.partition);
        call.arg(max).arg(age);
        for job in &chunk.items {
            call.arg(target_arg(&job.target));
        }
        let Some(answer) = self.run_on(CANCEL, &chunk.partition, call).await? else {
            return Ok(None);
        };
        let answers = reply::bytes(answer).unwrap_or_default();
        if answers.len() != chunk.items.len() {
            return unexpected(CANCEL);
        }
        let answers = answers.iter().map(|answer| match answer {
            b'C' => Cancelled::Cancelled,
            b'A' => Cancelled::AlreadyRunning,
            _ => Cancelled::NotFound,
        });
        Ok(Some(answers.collect()))
    }

    /// Moves waiting jobs to other due times; running jobs go on.
    pub(crate) async fn reschedule<'a>(
        &'a self,
        moves: &'a [Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let is_absent = |answer: &Rescheduled| *answer == Rescheduled::NotFound;
        self.route(RESCHEDULE, moves, is_absent, |chunk| Box::pin(self.reschedule_chunk(chunk)))
            .await
    }

    async fn reschedule_chunk(
        &self,
        chunk: Chunk<'_, Reschedule>,
    ) -> Result<Option<Vec<Rescheduled>>> {
        let mut call = self.scripts.reschedule.on([&*chunk.partition]);
        call.arg(&chunk.partition.channel);
        for reschedule in &chunk.items {
            call.arg(target_arg(&reschedule.job.target)).arg(due_arg(reschedule.due));
        }
        let Some(answer) = self.run_on(RESCHEDULE, &chunk.partition, call).await? else {
            return Ok(None);
        };
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            chunk.items.iter().map(|_| read_rescheduled(&mut reply)).collect::<Option<Vec<_>>>()
        };
        match read(answer) {
            Some(answers) => Ok(Some(answers)),
            None => unexpected(RESCHEDULE),
        }
    }
}

struct ScheduleReply {
    now: Timestamp,
    /// Whether the partition has received its first jobs.
    is_first: bool,
    results: Vec<Scheduled>,
}

/// The reply lists only jobs that were not simply created.
fn read_scheduled(answer: Value, chunk: &Chunk<'_, NewJob>) -> Option<ScheduleReply> {
    let mut reply = Reply::new(answer)?;
    let now = Timestamp::from_millis(reply.number()?);
    let is_first = reply.number()? == 1;
    let created =
        |job: &&NewJob| Scheduled::Created(Receipt { id: job.id, due: job.due.resolve(now) });
    let mut results: Vec<Scheduled> = chunk.items.iter().map(created).collect();
    while !reply.is_empty() {
        let index = usize::try_from(reply.number()?).ok()?.checked_sub(1)?;
        let code = reply.bytes()?;
        let receipt = read_receipt(&mut reply)?;
        *results.get_mut(index)? = match &code[..] {
            b"C" => Scheduled::Created(receipt),
            b"E" => Scheduled::Ended(receipt),
            b"K" => Scheduled::Kept(receipt),
            b"R" => Scheduled::Replaced(receipt),
            b"A" => Scheduled::AlreadyRunning(receipt),
            _ => return None,
        };
    }
    Some(ScheduleReply { now, is_first, results })
}

fn read_rescheduled(reply: &mut Reply) -> Option<Rescheduled> {
    let code = reply.bytes()?;
    match &code[..] {
        b"M" => Some(Rescheduled::Moved(read_receipt(reply)?)),
        code => {
            reply.bytes()?;
            reply.number()?;
            match code {
                b"A" => Some(Rescheduled::AlreadyRunning),
                b"N" => Some(Rescheduled::NotFound),
                _ => None,
            }
        }
    }
}

fn read_receipt(reply: &mut Reply) -> Option<Receipt> {
    let handle_and_tail: Bytes = reply.bytes()?;
    let due = Timestamp::from_millis(reply.number()?);
    let (handle, tail) = handle_and_tail.split_at_checked(HANDLE_BYTES)?;
    Some(Receipt { id: handle::id(handle, tail)?, due })
}

/// The handle of job number `number` (from 1) belongs to another id.
fn id_collision<T>(chunk: &Chunk<'_, NewJob>, number: usize) -> Result<T> {
    let Some(job) = number.checked_sub(1).and_then(|index| chunk.items.get(index)) else {
        return unexpected(SCHEDULE);
    };
    Err(Error::invalid(format!(
        "the id {} of a job for queue {} collides with the id of another job there: the two share \
         the 14 bytes by which Redis stores a job",
        job.id, job.queue
    ))
    .remedy("let the client make the ids, or use random ones")
    .operation(SCHEDULE))
}
