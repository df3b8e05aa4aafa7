//! Handles deliveries: jobs from the delay ladder, and foreign messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dq_core::{Clock, Due, Headers, Job, JobId, Listeners, NewJob, QueueName, Result, Timestamp};
use lapin::message::Delivery;
use lapin::types::AMQPValue;

use crate::engine::Engine;
use crate::error::Effect;
use crate::log::{Replica, command, wire};
use crate::message::{AckHandle, MessageJob, Prefetched};
use crate::names::ObjectNames;

/// The job queue for foreign messages whose original queue is unknown.
const UNKNOWN_QUEUE: &str = "dead-letters";
/// Maximum number and size of the headers of a foreign message that are kept.
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 512;

/// Pause between two attempts to handle a delivery.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How often stale jobs are removed from the prefetch buffer.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The broker's queue from which a message was delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum SourceQueue {
    /// The ready queue of a job queue.
    Ready(QueueName),
    /// The queue of dead letters.
    DeadLetters,
}

/// Handles deliveries, according to what the log says about their jobs.
#[derive(Debug)]
pub(crate) struct DeliveryHandler {
    pub(crate) engine: Arc<Engine>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) names: ObjectNames,
}

/// What to do with a delivered job.
enum Disposition {
    /// Keep it in the prefetch buffer: it is due soon, at this time.
    Prefetch(Timestamp),
    /// Publish it again: it is due later than the ladder reaches, or than others in its message.
    Republish(Job),
    /// Drop it: the job is leased, has ended, or has a newer message.
    Drop,
    /// Schedule it: it belongs to another log, and this one does not contain it.
    Schedule,
    /// Decide later: the replica is being restored.
    Retry,
}

/// Delivered jobs, each with its share of the delivery.
type DeliveredJobs = Vec<(MessageJob, AckHandle)>;

fn disposition(replica: &mut Replica, job: &MessageJob, soon: Timestamp) -> Disposition {
    if !replica.is_ready() {
        return Disposition::Retry;
    }
    let log_id = replica.log_id();
    let machine = replica.machine();
    match machine.peek(job.id) {
        Some(known) if !machine.is_waiting(known.id) => Disposition::Drop,
        // The reschedule has published another message.
        Some(known) if known.due != job.due && known.due > soon => Disposition::Drop,
        Some(known) if known.due > soon => Disposition::Republish(known.clone()),
        Some(known) => Disposition::Prefetch(known.due),
        None if job.log_id != log_id => Disposition::Schedule,
        None => Disposition::Drop,
    }
}

impl DeliveryHandler {
    /// Handles a delivered job message. Acknowledges each job once the message is not needed for
    /// it.
    pub(crate) fn handle_jobs(self: &Arc<Self>, jobs: Vec<MessageJob>, ack: AckHandle) {
        let acks: Vec<_> = ack.split(jobs.len()).collect();
        self.dispatch(jobs.into_iter().zip(acks).collect());
    }

    fn dispatch(self: &Arc<Self>, delivered: DeliveredJobs) {
        let soon = self.engine.log.now() + self.engine.max_early;
        let dispositions: Vec<_> = self.engine.log.peek(|replica| {
            delivered.iter().map(|(job, _)| disposition(replica, job, soon)).collect()
        });
        let [mut republish, mut schedule, mut retry] = [const { DeliveredJobs::new() }; 3];
        let mut first_due: BTreeMap<QueueName, Timestamp> = BTreeMap::new();
        for ((job, ack), disposition) in delivered.into_iter().zip(dispositions) {
            match disposition {
                Disposition::Drop => ack.ack(),
                Disposition::Prefetch(due) => {
                    let MessageJob { id, queue, payload, headers, .. } = job;
                    let prefetched = Prefetched::delivered((payload, headers), ack);
                    self.engine.prefetched.insert(&queue, id, due, prefetched);
                    first_due
                        .entry(queue)
                        .and_modify(|first| *first = due.min(*first))
                        .or_insert(due);
                }
                Disposition::Republish(known) => {
                    let log_id = self.engine.log_id().unwrap_or(job.log_id);
                    let payload = (job.payload, job.headers);
                    republish.push((MessageJob::from_job(log_id, &known, payload), ack));
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

    async fn retry(self: Arc<Self>, delivered: DeliveredJobs) {
        self.engine.log.clock().sleep(RETRY_PAUSE).await;
        self.dispatch(delivered);
    }

    async fn republish(self: Arc<Self>, delivered: DeliveredJobs) {
        let (jobs, acks): (Vec<_>, Vec<_>) = delivered.into_iter().unzip();
        self.persist(|| {
            self.engine.publisher.publish("publish", jobs.clone(), self.engine.log.now())
        })
        .await;
        acks.into_iter().for_each(AckHandle::ack);
    }

    /// Schedules jobs of another log, unless this log contains them once all of it has been read.
    async fn schedule_unknown(self: Arc<Self>, mut delivered: DeliveredJobs) {
        let log = &self.engine.log;
        let look = || {
            let jobs: Vec<_> = delivered.iter().map(|(job, _)| (job.id, job.log_id)).collect();
            log.call("restore", Effect::None, command::Barrier, move |replica, _, _| {
                let log_id = replica.log_id();
                let machine = replica.machine();
                let is_unknown =
                    |(id, of): (JobId, u64)| machine.peek(id).is_none() && log_id != of;
                (jobs.into_iter().map(is_unknown).collect::<Vec<_>>(), log_id)
            })
        };
        let (unknown, log_id) = self.persist(look).await;
        let unknown = delivered.iter().zip(unknown).filter(|(_, is_unknown)| *is_unknown);
        let unknown: Vec<_> =
            unknown.map(|((job, _), _)| wire::NewJob::from(job.to_new_job())).collect();
        if let Some(first) = unknown.first() {
            tracing::warn!(jobs = unknown.len(), first = %first.id, queue = %first.queue,
                "scheduling delivered jobs that the log does not contain: it was deleted or truncated");
            let unknown = command::Schedule(unknown);
            self.persist(|| log.call("restore", Effect::None, unknown.clone(), |_, _, _| ())).await;
        }
        for (job, _) in &mut delivered {
            job.log_id = log_id;
        }
        self.dispatch(delivered);
    }

    /// Handles a message that is not a job message: adds it to the dead jobs.
    pub(crate) fn handle_foreign(
        self: &Arc<Self>,
        source: &SourceQueue,
        delivery: &Delivery,
        ack: AckHandle,
    ) {
        let (queue, reason) = match source {
            SourceQueue::Ready(queue) => {
                let reason = "a message that is not a job was found in the ready queue".to_owned();
                (queue.clone(), reason)
            }
            SourceQueue::DeadLetters => self.first_death(delivery),
        };
        tracing::warn!(%queue, %reason, "a foreign message is added to the dead jobs");
        let id = self.engine.entropy.job_id(self.engine.log.now());
        let mut job = NewJob::new(id, queue, Due::NOW, delivery.data.clone().into());
        job.headers = text_headers(delivery);
        let handler = Arc::clone(self);
        self.engine.publisher.spawn(async move {
            let park = command::Park(vec![(job.into(), reason)]);
            let log = &handler.engine.log;
            handler.persist(|| log.call("park", Effect::None, park.clone(), |_, _, _| ())).await;
            ack.ack();
            Ok(())
        });
    }

    /// The job queue from which the broker dead-lettered a message, and why.
    fn first_death(&self, delivery: &Delivery) -> (QueueName, String) {
        let header = |name| {
            let table = delivery.properties.headers().as_ref()?;
            match table.inner().get(name)? {
                AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
                _ => None,
            }
        };
        let unknown = || QueueName::new(UNKNOWN_QUEUE).expect("a valid name");
        let Some(from) = header("x-first-death-queue") else {
            let reason = "a message that is not a job was found in the dead-letter queue";
            return (unknown(), reason.to_owned());
        };
        let why =
            header("x-first-death-reason").unwrap_or_else(|| "for an unknown reason".to_owned());
        // Names of the broker's queues may be too long for a job queue.
        let queue = self.names.job_queue(&from).or_else(|| QueueName::new(&from).ok());
        let reason = format!("the broker dead-lettered this message from {from}: {why}");
        (queue.unwrap_or_else(unknown), reason)
    }

    /// Removes stale jobs from the prefetch buffer, until the handler is dropped.
    pub(crate) async fn sweep(handler: Weak<Self>, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep(SWEEP_INTERVAL).await;
            let Some(handler) = handler.upgrade() else { return };
            handler.engine.sweep();
        }
    }

    /// Repeats an attempt until it succeeds: an unacknowledged message would occupy one place of
    /// the prefetch limit for as long as the connection lasts.
    async fn persist<T, F: Future<Output = Result<T>>>(&self, attempt: impl Fn() -> F) -> T {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => tracing::debug!(%error, "cannot handle a delivery yet"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// The text headers of a foreign message.
fn text_headers(delivery: &Delivery) -> Headers {
    let properties = &delivery.properties;
    let mut headers = Headers::new();
    if let Some(kind) = properties.content_type() {
        headers.insert(Headers::CONTENT_TYPE, kind.as_str());
    }
    let table = properties.headers().as_ref().map(|table| table.inner());
    for (name, value) in table.into_iter().flatten().take(MAX_HEADERS) {
        if let AMQPValue::LongString(text) = value
            && let Ok(text) = std::str::from_utf8(text.as_bytes())
            && text.len() <= MAX_HEADER_BYTES
            && !name.as_str().is_empty()
        {
            headers.insert(name.as_str(), text);
        }
    }
    headers
}
