//! Schedules, cancels and reschedules jobs.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Cancelled, Due, JobRef, NewJob, Reschedule, Rescheduled, Result, Scheduled};

use crate::engine::Engine;
use crate::entries::{self, MAX_ENTRY_ITEMS};
use crate::error::LostReply;
use crate::log::{Replica, command, reply_only, wire};
use crate::message::PublishedJob;

/// How long `schedule` waits for the confirmation of messages once the log has the jobs.
const MESSAGE_GRACE: Duration = Duration::from_secs(1);

impl Engine {
    pub(crate) async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let now = self.log.now();
        // Delays start now, for the log and for messages.
        for job in &mut jobs {
            job.due = Due::At(job.due.resolve(now));
        }
        let log_id = self.log_id();
        let message = |job: &NewJob| {
            let due = job.due.resolve(now);
            let log_id = log_id.filter(|_| self.needs_message(due, now))?;
            Some(PublishedJob::new(log_id, job, due))
        };
        let messages = jobs.iter().filter_map(message).collect();
        let jobs: Vec<_> = jobs.into_iter().map(wire::NewJob::from).collect();
        // The log decides entry by entry, so when it is nearly full it would take a part of the
        // call. Other processes may still fill it after this check.
        self.log.expect_room("schedule", &jobs)?;
        // The order does not matter: a message without a job in the log is dropped, and a job
        // without a message runs from the log.
        let published = self.publisher.start_publishing(messages, now);
        let scheduled = self.append_jobs(jobs).await?;
        // A process that ends now should not take the messages along, but slow queues must not hold
        // up the caller.
        if let Some(published) = published {
            tokio::time::timeout(MESSAGE_GRACE, published).await.ok();
        }
        Ok(scheduled)
    }

    async fn append_jobs(&self, jobs: Vec<wire::NewJob>) -> Result<Vec<Scheduled>> {
        let entries = entries::split(jobs);
        let append = |jobs| {
            let command = command::Schedule(jobs);
            self.log.call("schedule", LostReply::OutcomeUnknown, command, reply_only)
        };
        entries::join(entries.into_iter().map(append)).await
    }

    pub(crate) async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let mut cancelled = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(MAX_ENTRY_ITEMS) {
            let command = command::Cancel(chunk.iter().map(wire::JobRef::from).collect());
            let called = self.log.call("cancel", LostReply::OutcomeUnknown, command, reply_only);
            cancelled.extend(entries::part(!cancelled.is_empty(), called.await)?);
        }
        Ok(cancelled)
    }

    pub(crate) async fn reschedule(
        self: &Arc<Self>,
        moves: &[Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let now = self.log.now();
        let mut rescheduled = Vec::with_capacity(moves.len());
        for chunk in moves.chunks(MAX_ENTRY_ITEMS) {
            let command = command::Reschedule(chunk.iter().map(Into::into).collect());
            let read = |replica: &mut Replica, results: Vec<Rescheduled>, _| {
                let moved = results.iter().filter_map(|result| match result {
                    Rescheduled::Moved(receipt) => replica.job(receipt.id),
                    _ => None,
                });
                let moved = moved.collect();
                (results, moved)
            };
            let called = self.log.call("reschedule", LostReply::OutcomeUnknown, command, read);
            let (results, moved) = entries::part(!rescheduled.is_empty(), called.await)?;
            rescheduled.extend(results);
            self.publish_waiting(moved, now);
        }
        Ok(rescheduled)
    }
}
