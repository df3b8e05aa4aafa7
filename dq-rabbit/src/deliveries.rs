//! Handles deliveries: job messages from the delay ladder, and *foreign messages*, which another
//! program has published to a queue of this backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dq_core::{Clock, Job, JobId, Listeners, NewJob, QueueName, Result, Timestamp};
use lapin::message::Delivery;

use crate::buffer::Origin;
use crate::engine::{Engine, is_payload_of};
use crate::error::LostReply;
use crate::log::{Replica, command, headers_of, wire};
use crate::message::{AckHandle, PublishedJob};

/// Pause between two attempts to handle a delivery; it doubles from the minimum to the maximum.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(8);
/// How often stale jobs are removed from the payload buffer.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

/// Handles deliveries, according to the state of their jobs in the log.
#[derive(Debug)]
pub(crate) struct DeliveryHandler {
    pub(crate) engine: Arc<Engine>,
    pub(crate) listeners: Arc<Listeners>,
}

/// What to do with a delivered job.
enum Disposition {
    /// Keep it in the payload buffer: it is due soon, at this time.
    Buffer(Timestamp),
    /// Publish it again: it is due much later, because its delay exceeded that of the ladder, or
    /// because another job in its message was due first.
    Republish(Job),
    /// Drop it: the job is leased, has ended, has another payload, or has a newer message.
    Drop,
    /// Schedule it: it belongs to another log, and this one does not contain it.
    Schedule,
    /// Decide later: the replica is being restored.
    Retry,
}

/// Delivered jobs, each with the handle that acknowledges its share of the delivery.
type DeliveredJobs = Vec<(PublishedJob, AckHandle)>;

/// Decides what to do with a job. Jobs that are due after `buffer_until` are not buffered.
fn disposition(replica: &mut Replica, job: &PublishedJob, buffer_until: Timestamp) -> Disposition {
    if !replica.is_ready() {
        return Disposition::Retry;
    }
    let log_id = replica.log_id();
    let machine = replica.machine();
    match machine.peek(job.id) {
        Some(current) if !machine.is_waiting(current.id) => Disposition::Drop,
        // The message brings another payload than the job has now.
        Some(current) if !is_payload_of(&job.payload, current) => Disposition::Drop,
        // The job was rescheduled, which has published another message.
        Some(current) if current.due != job.due && current.due > buffer_until => Disposition::Drop,
        Some(current) if current.due > buffer_until => Disposition::Republish(current.clone()),
        Some(current) => Disposition::Buffer(current.due),
        None if job.log_id != log_id => Disposition::Schedule,
        None => Disposition::Drop,
    }
}

impl DeliveryHandler {
    /// Handles a delivered job message. Acknowledges the share of each job when that job no longer
    /// needs the message; the last share acknowledges the delivery.
    pub(crate) fn handle_jobs(self: &Arc<Self>, jobs: Vec<PublishedJob>, ack: AckHandle) {
        let acks: Vec<_> = ack.split(jobs.len()).collect();
        self.dispatch(jobs.into_iter().zip(acks).collect());
    }

    /// Decides what to do with each job, and does it.
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
                    let headers = headers_of(&current);
                    let job = PublishedJob::from_job(log_id, &current, headers, job.payload);
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

    /// Handles these jobs in the background, if there are any.
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

    /// Decides again after a pause.
    async fn retry(self: Arc<Self>, delivered: DeliveredJobs) {
        self.engine.log.clock().sleep(RETRY_PAUSE).await;
        self.dispatch(delivered);
    }

    /// Publishes jobs in new messages, then acknowledges the old ones.
    async fn republish(self: Arc<Self>, delivered: DeliveredJobs) {
        let (jobs, acks): (Vec<_>, Vec<_>) = delivered.into_iter().unzip();
        self.persist(|| {
            self.engine.publisher.publish("publish", jobs.clone(), self.engine.log.now())
        })
        .await;
        acks.into_iter().for_each(AckHandle::ack);
    }

    /// Schedules jobs that another log with this name contained, unless this log contains them too.
    /// That is decided after a barrier, when all earlier entries have been read.
    async fn schedule_unknown(self: Arc<Self>, mut delivered: DeliveredJobs) {
        let log = &self.engine.log;
        let find_unknown = || {
            let jobs: Vec<_> = delivered.iter().map(|(job, _)| (job.id, job.log_id)).collect();
            log.call("restore", LostReply::Unavailable, command::Barrier, move |replica, _, _| {
                let log_id = replica.log_id();
                let machine = replica.machine();
                let is_unknown =
                    |(id, job_log): (JobId, u64)| machine.peek(id).is_none() && log_id != job_log;
                (jobs.into_iter().map(is_unknown).collect::<Vec<_>>(), log_id)
            })
        };
        let (unknown, log_id) = self.persist(find_unknown).await;
        let unknown = delivered.iter().zip(unknown).filter(|(_, is_unknown)| *is_unknown);
        let unknown: Vec<_> =
            unknown.map(|((job, _), _)| without_options(job.to_new_job())).collect();
        if let Some(first) = unknown.first() {
            tracing::warn!(jobs = unknown.len(), first = %first.id, queue = %first.queue,
                "scheduling delivered jobs that the log does not contain: it was deleted or truncated");
            let unknown = command::Schedule(unknown);
            self.persist(|| {
                log.call("restore", LostReply::Unavailable, unknown.clone(), |_, _, _| ())
            })
            .await;
        }
        // This log contains all of these jobs now. With the id of another log, `disposition` would
        // have a job scheduled again that has ended in this log since.
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
            handler.persist(|| publisher.set_aside(&delivery)).await;
            ack.ack();
            Ok(())
        });
    }

    /// Removes stale jobs from the payload buffer at intervals, until the handler is dropped.
    pub(crate) async fn prune(handler: Weak<Self>, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep(PRUNE_INTERVAL).await;
            let Some(handler) = handler.upgrade() else { return };
            handler.engine.prune_payloads();
        }
    }

    /// Repeats an attempt until it succeeds, more and more slowly. Giving up would leave the message
    /// unacknowledged, and it would count towards the prefetch limit for as long as the connection
    /// lasts.
    async fn persist<T, F: Future<Output = Result<T>>>(&self, attempt: impl Fn() -> F) -> T {
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

/// The wire format of a job with the options of [`NewJob::new`].
fn without_options(job: NewJob) -> wire::NewJob {
    job.try_into().expect("these options have a form in the log")
}
