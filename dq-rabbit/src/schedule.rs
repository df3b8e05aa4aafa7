//! Schedules, cancels and reschedules jobs.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Cancelled, Due, JobRef, NewJob, Reschedule, Rescheduled, Result, Scheduled};

use crate::engine::Engine;
use crate::entries;
use crate::error::LostReply;
use crate::log::wire::{self, Command};
use crate::log::{Replica, reply_only};
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
        // call.
        self.log.expect_room("schedule", &jobs)?;
        // The order does not matter: a message without a job in the log is dropped, and a job
        // without a message runs from the log.
        let published = self.publisher.start_publishing(messages, now);
        let scheduled = entries::append(jobs, |jobs| {
            let command = Command::Schedule(jobs);
            self.log.call("schedule", LostReply::OutcomeUnknown, command, reply_only)
        })
        .await?;
        // A process that ends now should not take the messages along.
        if let Some(published) = published {
            tokio::time::timeout(MESSAGE_GRACE, published).await.ok();
        }
        Ok(scheduled)
    }

    pub(crate) async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        entries::append(jobs.iter().map(wire::JobRef::from).collect(), |jobs| {
            let command = Command::Cancel(jobs);
            self.log.call("cancel", LostReply::OutcomeUnknown, command, reply_only)
        })
        .await
    }

    pub(crate) async fn reschedule(
        self: &Arc<Self>,
        moves: &[Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let now = self.log.now();
        let read = |replica: &mut Replica, results: Vec<Rescheduled>, _| -> Vec<_> {
            let moved_job = |result: &Rescheduled| match result {
                Rescheduled::Moved(receipt) => replica.job(receipt.id),
                _ => None,
            };
            results.into_iter().map(|result| (result, moved_job(&result))).collect()
        };
        let rescheduled = entries::append(moves.iter().map(Into::into).collect(), |moves| {
            let command = Command::Reschedule(moves);
            self.log.call("reschedule", LostReply::OutcomeUnknown, command, read)
        })
        .await?;
        let (results, moved): (Vec<_>, Vec<_>) = rescheduled.into_iter().unzip();
        self.deliver(moved.into_iter().flatten().map(|job| (job, None)).collect(), now);
        Ok(results)
    }
}
