//! Schedule, cancel and reschedule.

use std::sync::Arc;

use dq_core::{
    Cancelled, Due, Error, ErrorKind, JobRef, NewJob, Reschedule, Rescheduled, Result, Scheduled,
};

use crate::engine::Engine;
use crate::error::{Effect, outcome_unknown};
use crate::log::{Command, Naming, Replica, Reply, Scheduling};
use crate::message::MessageJob;

/// Approximate maximum size of the jobs in one log entry, in bytes.
const CHUNK_BYTES: usize = 128 * 1024;
/// Maximum number of jobs in one log entry, so that applying it does not delay other entries.
const CHUNK: usize = 1_000;

impl Engine {
    pub(crate) async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if self.log.is_full() {
            return Err(Error::new(
                ErrorKind::Full,
                "the jobs that are not done take more than a fifth of the log",
            )
            .remedy("run or remove jobs, or set a larger `log_size_mib` with another `prefix`")
            .operation("schedule"));
        }
        let now = self.log.now();
        // Delays start now, for the log and the messages alike.
        for job in &mut jobs {
            job.due = Due::At(job.due.resolve(now));
        }
        // While the replica is being restored, jobs get no messages.
        let log_id = self.log_id();
        let message = |job: &NewJob| {
            let due = job.due.resolve(now);
            let log_id = log_id.filter(|_| self.needs_message(due, now))?;
            Some(MessageJob::new(log_id, job, due))
        };
        let messages = jobs.iter().filter_map(message).collect();
        // Concurrently, in any order: a message without a job is dropped, and a job without a message runs
        // from the log.
        let (scheduled, published) =
            tokio::join!(self.append_jobs(jobs), self.publisher.publish("schedule", messages, now));
        let scheduled = scheduled?;
        match published {
            Ok(()) => Ok(scheduled),
            // The jobs are in the log, but without the messages that the caller relies on.
            Err(error) if error.is_retryable() => Err(outcome_unknown(&error)),
            Err(error) => Err(error),
        }
    }

    /// Appends the jobs to the log, in several entries if they are many.
    async fn append_jobs(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let count = jobs.len();
        let mut calls = Vec::new();
        let mut jobs = jobs.into_iter().map(Scheduling::from).peekable();
        while jobs.peek().is_some() {
            let mut chunk = Vec::new();
            let mut bytes = 0;
            while chunk.len() < CHUNK
                && let Some(job) =
                    jobs.next_if(|job| bytes == 0 || bytes + job.weight() <= CHUNK_BYTES)
            {
                bytes += job.weight();
                chunk.push(job);
            }
            calls.push(self.log.call(
                "schedule",
                Effect::Lasting,
                Command::Schedule(chunk),
                |_, reply, _| match reply {
                    Reply::Scheduled(scheduled) => scheduled,
                    _ => Vec::new(),
                },
            ));
        }
        let chunks = calls.len();
        let mut scheduled = Vec::with_capacity(count);
        let mut failure = None;
        for chunk in futures_util::future::join_all(calls).await {
            match chunk {
                Ok(chunk) => scheduled.extend(chunk),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            None => Ok(scheduled),
            // Jobs of other entries may be stored.
            Some(error) if error.is_retryable() && chunks > 1 => Err(outcome_unknown(&error)),
            Some(error) => Err(error),
        }
    }

    pub(crate) async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let mut cancelled = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(CHUNK) {
            let command = Command::Cancel(chunk.iter().map(Naming::from).collect());
            let read = |_: &mut _, reply, _| match reply {
                Reply::Cancelled(cancelled) => cancelled,
                _ => Vec::new(),
            };
            cancelled.extend(self.log.call("cancel", Effect::Lasting, command, read).await?);
        }
        Ok(cancelled)
    }

    pub(crate) async fn reschedule(
        self: &Arc<Self>,
        moves: &[Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let now = self.log.now();
        let mut rescheduled = Vec::with_capacity(moves.len());
        for chunk in moves.chunks(CHUNK) {
            let command = Command::Reschedule(chunk.iter().map(Into::into).collect());
            let read = |replica: &mut Replica, reply, _| {
                let Reply::Rescheduled(results) = reply else { return (Vec::new(), Vec::new()) };
                let moved = results.iter().filter_map(|result| match result {
                    Rescheduled::Moved(receipt) => replica.machine().peek(receipt.id).cloned(),
                    _ => None,
                });
                let moved = moved.collect();
                (results, moved)
            };
            let called = self.log.call("reschedule", Effect::Lasting, command, read);
            let (results, moved) = called.await?;
            rescheduled.extend(results);
            self.publish_waiting(moved, now);
        }
        Ok(rescheduled)
    }
}
