//! Schedules, cancels and reschedules jobs.

use std::sync::Arc;

use dq_core::{
    Cancelled, Due, Error, ErrorKind, JobRef, NewJob, Reschedule, Rescheduled, Result, Scheduled,
};

use crate::engine::Engine;
use crate::error::{LostReply, outcome_unknown};
use crate::log::{Replica, command, wire};
use crate::message::PublishedJob;

/// Approximate maximum size of the jobs in one log entry, in bytes.
const MAX_ENTRY_BYTES: usize = 128 * 1024;
/// Maximum number of jobs in one log entry, so that applying it does not delay other entries.
const MAX_ENTRY_JOBS: usize = 1_000;

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
            Some(PublishedJob::new(log_id, job, due))
        };
        let messages = jobs.iter().filter_map(message).collect();
        // Concurrently, since their order does not matter: a message whose job is not in the log is
        // dropped, and a job without a message runs from the log.
        let (scheduled, published) =
            tokio::join!(self.append_jobs(jobs), self.publisher.publish("schedule", messages, now));
        let scheduled = scheduled?;
        match published {
            Ok(()) => Ok(scheduled),
            // The jobs are in the log, but some have no message: they would start late.
            Err(error) if error.is_retryable() => Err(outcome_unknown(&error)),
            Err(error) => Err(error),
        }
    }

    /// Appends the jobs to the log, in several entries if they are many.
    async fn append_jobs(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let count = jobs.len();
        let mut calls = Vec::new();
        let mut jobs = jobs.into_iter().map(wire::NewJob::from).peekable();
        while jobs.peek().is_some() {
            let mut chunk = Vec::new();
            let mut bytes = 0;
            while chunk.len() < MAX_ENTRY_JOBS
                && let Some(job) =
                    jobs.next_if(|job| bytes == 0 || bytes + job.approx_size() <= MAX_ENTRY_BYTES)
            {
                bytes += job.approx_size();
                chunk.push(job);
            }
            calls.push(self.log.call(
                "schedule",
                LostReply::OutcomeUnknown,
                command::Schedule(chunk),
                |_, scheduled, _| scheduled,
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
        for chunk in jobs.chunks(MAX_ENTRY_JOBS) {
            let command = command::Cancel(chunk.iter().map(wire::JobRef::from).collect());
            let called =
                self.log
                    .call("cancel", LostReply::OutcomeUnknown, command, |_, results, _| results);
            cancelled.extend(called.await?);
        }
        Ok(cancelled)
    }

    pub(crate) async fn reschedule(
        self: &Arc<Self>,
        moves: &[Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let now = self.log.now();
        let mut rescheduled = Vec::with_capacity(moves.len());
        for chunk in moves.chunks(MAX_ENTRY_JOBS) {
            let command = command::Reschedule(chunk.iter().map(Into::into).collect());
            let read = |replica: &mut Replica, results: Vec<Rescheduled>, _| {
                let moved = results.iter().filter_map(|result| match result {
                    Rescheduled::Moved(receipt) => replica.machine().peek(receipt.id).cloned(),
                    _ => None,
                });
                let moved = moved.collect();
                (results, moved)
            };
            let called = self.log.call("reschedule", LostReply::OutcomeUnknown, command, read);
            let (results, moved) = called.await?;
            rescheduled.extend(results);
            self.publish_waiting(moved, now);
        }
        Ok(rescheduled)
    }
}
