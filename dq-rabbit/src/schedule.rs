//! Schedule, cancel and reschedule.

use std::sync::Arc;

use dq_core::{
    Cancelled, Due, Error, ErrorKind, JobRef, NewJob, Reschedule, Rescheduled, Result, Scheduled,
};

use crate::carrier::Carried;
use crate::desk::Desk;
use crate::error::{Effect, in_doubt};
use crate::log::{Replica, command, wire};

/// Bytes of jobs that make one call of the log, roughly.
const CHUNK_BYTES: usize = 128 * 1024;
/// Jobs that make one call of the log, at most: none shall keep the others waiting.
const CHUNK: usize = 1_000;

impl Desk {
    pub(crate) async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if self.log.is_full() {
            return Err(Error::new(
                ErrorKind::Full,
                "the jobs in the log take more than a fifth of what the broker keeps of it",
            )
            .remedy("run or remove jobs, or raise `log_size_mib`, with another `prefix`")
            .operation("schedule"));
        }
        let now = self.log.now();
        // A delay begins now, for the log and for the carriers alike.
        for job in &mut jobs {
            job.due = Due::At(job.due.resolve(now));
        }
        // While the log is read anew, jobs go without carriers.
        let log = self.epoch();
        let carried = |job: &NewJob| {
            let due = job.due.resolve(now);
            let log = log.filter(|_| self.is_carried(due, now))?;
            Some(Carried::new(log, job, due))
        };
        let carried = jobs.iter().filter_map(carried).collect();
        // Both at once. A carrier without a job is dropped, and a job without a carrier is found, so
        // it does not matter which of them is there if only one is.
        let (answers, sent) =
            tokio::join!(self.write(jobs), self.courier.send("schedule", carried, now));
        let answers = answers?;
        match sent {
            Ok(()) => Ok(answers),
            // The jobs are in the log, but not as safe as they were to be.
            Err(error) if error.is_retryable() => Err(in_doubt(&error)),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let count = jobs.len();
        let mut calls = Vec::new();
        let mut jobs = jobs.into_iter().map(wire::NewJob::from).peekable();
        while jobs.peek().is_some() {
            let mut chunk = Vec::new();
            let mut bytes = 0;
            while chunk.len() < CHUNK
                && let Some(job) =
                    jobs.next_if(|job| bytes == 0 || bytes + job.approx_size() <= CHUNK_BYTES)
            {
                bytes += job.approx_size();
                chunk.push(job);
            }
            calls.push(self.log.call(
                "schedule",
                Effect::Lasting,
                command::Schedule(chunk),
                |_, scheduled, _| scheduled,
            ));
        }
        let chunks = calls.len();
        let mut answers = Vec::with_capacity(count);
        let mut refused = None;
        for chunk in futures_util::future::join_all(calls).await {
            match chunk {
                Ok(chunk) => answers.extend(chunk),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            None => Ok(answers),
            // The others of them may be stored.
            Some(error) if error.is_retryable() && chunks > 1 => Err(in_doubt(&error)),
            Some(error) => Err(error),
        }
    }

    pub(crate) async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let mut answers = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(CHUNK) {
            let command = command::Cancel(chunk.iter().map(wire::JobRef::from).collect());
            let called =
                self.log.call("cancel", Effect::Lasting, command, |_, cancelled, _| cancelled);
            answers.extend(called.await?);
        }
        Ok(answers)
    }

    pub(crate) async fn reschedule(
        self: &Arc<Self>,
        moves: &[Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let now = self.log.now();
        let mut answers = Vec::with_capacity(moves.len());
        for chunk in moves.chunks(CHUNK) {
            let command = command::Reschedule(chunk.iter().map(Into::into).collect());
            let read = |replica: &mut Replica, answers: Vec<Rescheduled>, _| {
                let moved = answers.iter().filter_map(|answer| match answer {
                    Rescheduled::Moved(receipt) => replica.machine().peek(receipt.id).cloned(),
                    _ => None,
                });
                let moved = moved.collect();
                (answers, moved)
            };
            let called = self.log.call("reschedule", Effect::Lasting, command, read);
            let (some, moved) = called.await?;
            answers.extend(some);
            self.carry(moved, now);
        }
        Ok(answers)
    }
}
