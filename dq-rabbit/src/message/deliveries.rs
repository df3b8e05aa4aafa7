//! Handles deliveries from the ready queues: job messages, and other programs' *foreign messages*.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{JobId, Listeners, QueueName, Result, Scheduled, Timestamp};
use lapin::message::Delivery;

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::wire::{self, Command};
use crate::log::{Replica, ReplicaJob};
use crate::message::{AckHandle, PublishedJob};
use crate::payloads::buffer::Origin;

/// The pause before a delivery is handled again. `retry_until_ok` doubles it, up to the maximum.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(crate) struct DeliveryHandler {
    pub(crate) engine: Arc<Engine>,
    pub(crate) listeners: Arc<Listeners>,
}

/// The next step for a delivered job.
enum Disposition {
    /// The job is due soon, at this time.
    Buffer(Timestamp),
    /// The job is due much later: its delay exceeded the ladder's, or its message's first job was
    /// due earlier.
    Republish(ReplicaJob),
    /// The job is leased, has ended, has another payload, or has a newer message.
    Drop,
    /// The job belongs to another log, and this one does not contain it.
    Schedule,
    /// The replica is being restored.
    Retry,
}

type DeliveredJobs = Vec<(PublishedJob, AckHandle)>;

/// Jobs that are due after `buffer_until` do not go into the buffer.
fn disposition(replica: &mut Replica, job: &PublishedJob, buffer_until: Timestamp) -> Disposition {
    if !replica.is_ready() {
        return Disposition::Retry;
    }
    let Some(current) = replica.job(job.id) else {
        let is_of_another = job.log_id != replica.log_id();
        return if is_of_another { Disposition::Schedule } else { Disposition::Drop };
    };
    let due = current.job.due;
    if !replica.machine().is_waiting(job.id) || !current.stored.payload.is_of(&job.payload) {
        Disposition::Drop
    } else if due <= buffer_until {
        Disposition::Buffer(due)
    } else if due == job.due {
        Disposition::Republish(current)
    } else {
        // A reschedule has published another message.
        Disposition::Drop
    }
}

impl DeliveryHandler {
    /// Handles a job message, which is acknowledged when its last job is handled.
    pub(crate) fn handle_jobs(self: &Arc<Self>, jobs: Vec<PublishedJob>, ack: AckHandle) {
        let acks: Vec<_> = ack.split(jobs.len()).collect();
        self.dispatch(jobs.into_iter().zip(acks).collect());
    }

    fn dispatch(self: &Arc<Self>, delivered: DeliveredJobs) {
        let buffer_until = self.engine.log.now() + self.engine.max_early;
        let dispositions: Vec<_> = self.engine.log.peek(|replica| {
            delivered.iter().map(|(job, _)| disposition(replica, job, buffer_until)).collect()
        });
        let [mut republish, mut schedule, mut retry] = [const { DeliveredJobs::new() }; 3];
        let mut first_due: BTreeMap<QueueName, Timestamp> = BTreeMap::new();
        for ((job, ack), disposition) in delivered.into_iter().zip(dispositions) {
            match disposition {
                Disposition::Drop => ack.ack(),
                Disposition::Buffer(due) => {
                    let PublishedJob { id, queue, payload, .. } = job;
                    let origin = Origin::Message(ack);
                    self.engine.payloads.insert(&queue, id, due, payload, origin);
                    first_due
                        .entry(queue)
                        .and_modify(|first| *first = due.min(*first))
                        .or_insert(due);
                }
                Disposition::Republish(current) => {
                    let log_id = self.engine.log_id().unwrap_or(job.log_id);
                    let ReplicaJob { job: current, stored } = current;
                    let job =
                        PublishedJob::from_job(log_id, &current, stored.headers(), job.payload);
                    republish.push((job, ack));
                }
                Disposition::Schedule => schedule.push((job, ack)),
                Disposition::Retry => retry.push((job, ack)),
            }
        }
        for (queue, due) in first_due {
            self.listeners.wake(&queue, due);
        }
        self.in_background(republish, Self::republish);
        self.in_background(schedule, Self::schedule_unknown);
        self.in_background(retry, Self::retry);
    }

    fn in_background<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        delivered: DeliveredJobs,
        handle: impl FnOnce(Arc<Self>, DeliveredJobs) -> F + Send + 'static,
    ) {
        if delivered.is_empty() {
            return;
        }
        let handler = Arc::clone(self);
        self.engine.publisher.spawn(async move {
            handle(handler, delivered).await;
            Ok(())
        });
    }

    async fn retry(self: Arc<Self>, delivered: DeliveredJobs) {
        self.engine.log.clock().sleep(RETRY_PAUSE).await;
        self.dispatch(delivered);
    }

    async fn republish(self: Arc<Self>, delivered: DeliveredJobs) {
        let (jobs, acks): (Vec<_>, Vec<_>) = delivered.into_iter().unzip();
        let Engine { publisher, log, .. } = &*self.engine;
        self.retry_until_ok(|| publisher.publish(jobs.clone(), log.now())).await;
        acks.into_iter().for_each(AckHandle::ack);
    }

    /// Schedules an earlier log's jobs, unless this log contains them too, as a barrier shows.
    async fn schedule_unknown(self: Arc<Self>, mut delivered: DeliveredJobs) {
        let log = &self.engine.log;
        let find_unknown = || {
            let jobs: Vec<_> = delivered.iter().map(|(job, _)| (job.id, job.log_id)).collect();
            log.call("restore", LostReply::Unavailable, Command::Barrier, move |replica, (), _| {
                let log_id = replica.log_id();
                let machine = replica.machine();
                let is_unknown =
                    |(id, job_log): (JobId, u64)| machine.peek(id).is_none() && log_id != job_log;
                (jobs.into_iter().map(is_unknown).collect::<Vec<_>>(), log_id)
            })
        };
        let (unknown, log_id) = self.retry_until_ok(find_unknown).await;
        let unknown = delivered.iter().zip(unknown).filter(|(_, is_unknown)| *is_unknown);
        let unknown: Vec<wire::NewJob> =
            unknown.map(|((job, _), _)| job.to_new_job().into()).collect();
        if let Some(first) = unknown.first() {
            tracing::warn!(jobs = unknown.len(), first = %first.id, queue = %first.queue,
                "scheduling delivered jobs that the log does not contain: it was deleted or truncated");
            let unknown = Command::Schedule(unknown);
            let ignore = |_: &mut Replica, _: Vec<Scheduled>, _| ();
            self.retry_until_ok(|| {
                log.call("restore", LostReply::Unavailable, unknown.clone(), ignore)
            })
            .await;
        }
        // This log has had all these jobs now. With the earlier log's id, `disposition` would
        // schedule a job again that has ended since.
        for (job, _) in &mut delivered {
            job.log_id = log_id;
        }
        self.dispatch(delivered);
    }

    /// Moves a message that is not a job message to the dead-letter queue.
    pub(crate) fn set_aside(
        self: &Arc<Self>,
        queue: &QueueName,
        delivery: Delivery,
        ack: AckHandle,
    ) {
        tracing::warn!(%queue, "a foreign message goes to the dead-letter queue");
        let handler = Arc::clone(self);
        self.engine.publisher.spawn(async move {
            let publisher = &handler.engine.publisher;
            handler.retry_until_ok(|| publisher.set_aside(&delivery)).await;
            ack.ack();
            Ok(())
        });
    }

    /// Repeats an attempt until it succeeds. An unacknowledged message counts towards the prefetch
    /// limit as long as the connection lasts.
    async fn retry_until_ok<T, F: Future<Output = Result<T>>>(&self, attempt: impl Fn() -> F) -> T {
        let mut pause = RETRY_PAUSE;
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => tracing::debug!(%error, "cannot handle a delivery yet"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
        }
    }
}
