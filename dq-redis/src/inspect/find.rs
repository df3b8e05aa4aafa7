//! Finds one job by id or key.

use std::sync::Arc;

use dq_core::{Cursor, JobRef, JobState, JobView, QueueName, Result};
use futures_util::future::try_join_all;
use redis::Value;

use super::StoredJob;
use crate::args::target_arg;
use crate::handle;
use crate::keys::Partition;
use crate::reply::Reply;
use crate::resize::retry_if_closed;
use crate::store::RedisBackend;

enum Found {
    Job(Box<JobView>),
    NoJob,
    Closed,
}

impl RedisBackend {
    /// A job named by its key must be live (waiting or leased); one named by its id may also be
    /// dead or have ended.
    pub(crate) async fn find_job(&self, job: &JobRef) -> Result<Option<JobView>> {
        let Some(view) = retry_if_closed!(self, self.try_find_job(job))? else { return Ok(None) };
        let partitions = self.partitions_of(&job.queue).await?;
        let Some(ended) = view.ended.as_ref().filter(|_| !partitions.is_single()) else {
            return Ok(Some(view));
        };
        // A shard keeps more than its share of the history: see `history_args`.
        let seq =
            handle::handle(view.job.id).iter().fold(0, |seq, byte| seq << 8 | u128::from(*byte));
        let later = self.count_ends(&partitions, Some(Cursor { at: ended.at, seq })).await?;
        let max = self.history.of(&job.queue).max as usize;
        // If the shards change meanwhile, the limit is skipped: the job was there a moment ago.
        Ok(Some(view).filter(|_| later.unwrap_or(0) < max))
    }

    /// The outer `None` means that a partition is closed.
    async fn try_find_job(&self, job: &JobRef) -> Result<Option<Option<JobView>>> {
        let partitions = self.partitions_of(&job.queue).await?;
        let (first, others) = partitions.candidates(&job.target);
        let mut answers = vec![self.find_in(partitions.shard(first), job).await?];
        if matches!(answers[0], Found::NoJob) {
            let calls = others.iter().map(|shard| self.find_in(partitions.shard(*shard), job));
            answers.extend(try_join_all(calls).await?);
        }
        let mut is_closed = false;
        for answer in answers {
            match answer {
                Found::Job(view) => return Ok(Some(Some(*view))),
                Found::NoJob => {}
                Found::Closed => is_closed = true,
            }
        }
        Ok((!is_closed).then_some(None))
    }

    async fn find_in(&self, partition: &Arc<Partition>, job: &JobRef) -> Result<Found> {
        let mut call = self.scripts.get.on([&**partition]);
        call.arg(target_arg(&job.target));
        match self.history_args(partition) {
            (0, _) => call.arg(-1),
            (_, max_age) => call.arg(max_age),
        };
        let Some(reply) = self.run_on(partition, call).await? else { return Ok(Found::Closed) };
        let view = read_view(reply, &job.queue)?;
        Ok(view.map_or(Found::NoJob, |view| Found::Job(Box::new(view))))
    }
}

fn read_view(reply: Value, queue: &QueueName) -> Result<Option<JobView>> {
    let mut reply = Reply::new(reply)?;
    if reply.is_empty() {
        return Ok(None);
    }
    let now = reply.number()?;
    let (handle, letter, time) = (reply.bytes()?, reply.bytes()?, reply.number()?);
    let job_state = match &letter[..] {
        b"l" => JobState::Running,
        b"d" => JobState::Dead,
        b"e" => JobState::Ended,
        _ if time > now => JobState::Scheduled,
        _ => JobState::Ready,
    };
    Ok(StoredJob::read(&mut reply, handle, time)?.view(queue, job_state))
}
