//! What becomes of messages that come out of the ladder.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dq_core::{
    Clock, Due, Headers, Job, JobId, Listeners, NewJob, OnConflict, QueueName, Result, Timestamp,
};
use lapin::message::Delivery;
use lapin::types::AMQPValue;

use crate::carrier::{Carried, Held, Sorter, Ticket};
use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{Replica, command, wire};
use crate::names::Names;

/// Where strange messages are shown of which it is not known what queue they were meant for.
const NOWHERE: &str = "dead-letters";
/// Headers of strange messages that are kept.
const HEADERS: usize = 32;
const HEADER_BYTES: usize = 512;

/// Sorts what arrives.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pub(crate) desk: Arc<Desk>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) names: Names,
}

/// What becomes of a job that has arrived.
enum Fate {
    /// It is due soon.
    Hold(Timestamp),
    /// It is due later than the ladder reaches, or than those that it came with.
    Again(Job),
    /// It runs, or has ended.
    Drop,
    /// This log has never heard of it.
    Adopt,
    /// It cannot be said yet.
    Wait,
}

/// Jobs that have arrived, each with its share of the message.
type Arrived = Vec<(Carried, Ticket)>;

/// Between two attempts to deal with a message.
const PAUSE: Duration = Duration::from_millis(500);
/// How often it is looked what can be dropped of what is held.
const SWEEP: Duration = Duration::from_secs(60);

fn fate(replica: &mut Replica, carried: &Carried, soon: Timestamp) -> Fate {
    if !replica.is_ready() {
        return Fate::Wait;
    }
    let epoch = replica.log_id();
    let machine = replica.machine();
    match machine.peek(carried.id) {
        Some(job) if !machine.waits(job.id) => Fate::Drop,
        // If it was moved, whoever did that has sent it once more.
        Some(job) if job.due != carried.due && job.due > soon => Fate::Drop,
        Some(job) if job.due > soon => Fate::Again(job.clone()),
        Some(job) => Fate::Hold(job.due),
        None if carried.log != epoch => Fate::Adopt,
        None => Fate::Drop,
    }
}

impl Arrivals {
    fn sort(self: &Arc<Self>, arrived: Arrived) {
        let soon = self.desk.log.now() + self.desk.early;
        let fates: Vec<_> = self.desk.log.peek(|replica| {
            arrived.iter().map(|(carried, _)| fate(replica, carried, soon)).collect()
        });
        let [mut again, mut unknown, mut unclear] = [const { Arrived::new() }; 3];
        let mut first: BTreeMap<QueueName, Timestamp> = BTreeMap::new();
        for ((carried, ticket), fate) in arrived.into_iter().zip(fates) {
            match fate {
                Fate::Drop => ticket.done(),
                Fate::Hold(due) => {
                    let Carried { id, queue, payload, headers, .. } = carried;
                    let held = Held { payload, headers, ticket: Some(ticket) };
                    self.desk.hold.keep(&queue, id, due, held);
                    first.entry(queue).and_modify(|first| *first = due.min(*first)).or_insert(due);
                }
                Fate::Again(job) => {
                    let log = self.desk.epoch().unwrap_or(carried.log);
                    let payload = (carried.payload, carried.headers);
                    again.push((Carried::of(log, &job, payload), ticket));
                }
                Fate::Adopt => unknown.push((carried, ticket)),
                Fate::Wait => unclear.push((carried, ticket)),
            }
        }
        for (queue, due) in first {
            self.listeners.wake(&queue, due);
        }
        self.later(again, Self::send_again);
        self.later(unknown, Self::adopt);
        self.later(unclear, Self::wait);
    }

    /// Deals with these jobs in the background, if there are any.
    fn later<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        arrived: Arrived,
        deal: impl FnOnce(Arc<Self>, Arrived) -> F + Send + 'static,
    ) {
        if arrived.is_empty() {
            return;
        }
        let arrivals = Arc::clone(self);
        self.desk.courier.errand(|_| async move {
            deal(arrivals, arrived).await;
            Ok(())
        });
    }

    async fn wait(self: Arc<Self>, arrived: Arrived) {
        self.desk.log.clock().sleep(PAUSE).await;
        self.sort(arrived);
    }

    async fn send_again(self: Arc<Self>, arrived: Arrived) {
        let (jobs, tickets): (Vec<_>, Vec<_>) = arrived.into_iter().unzip();
        self.persist(|| self.desk.courier.send("carry", jobs.clone(), self.desk.log.now())).await;
        tickets.into_iter().for_each(Ticket::done);
    }

    /// Puts jobs into the log that are not there, if that is so still when all of the log has been read.
    async fn adopt(self: Arc<Self>, mut arrived: Arrived) {
        let log = &self.desk.log;
        let look = || {
            let sought: Vec<_> = arrived.iter().map(|(job, _)| (job.id, job.log)).collect();
            log.call("adopt", Effect::None, command::Barrier, move |replica, _, _| {
                let epoch = replica.log_id();
                let machine = replica.machine();
                let is_lost = |(id, of): (JobId, u64)| machine.peek(id).is_none() && epoch != of;
                (sought.into_iter().map(is_lost).collect::<Vec<_>>(), epoch)
            })
        };
        let (lost, epoch) = self.persist(look).await;
        let lost = arrived.iter().zip(lost).filter(|(_, is_lost)| *is_lost);
        let lost: Vec<_> = lost.map(|((job, _), _)| wire::NewJob::from(job.adopted())).collect();
        if let Some(first) = lost.first() {
            tracing::warn!(jobs = lost.len(), first = %first.id, queue = %first.queue,
                "jobs arrived that are not in the log: the log was deleted, or lost its end");
            let adopted = command::Schedule(lost);
            self.persist(|| log.call("adopt", Effect::None, adopted.clone(), |_, _, _| ())).await;
        }
        for (job, _) in &mut arrived {
            job.log = epoch;
        }
        self.sort(arrived);
    }

    /// Drops what need not be held any more, for as long as there is somebody to hold it for.
    pub(crate) async fn sweep(arrivals: Weak<Self>, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep(SWEEP).await;
            let Some(arrivals) = arrivals.upgrade() else { return };
            arrivals.desk.sweep();
        }
    }

    /// What the broker says of a dead letter: which queue it was in, and why it is there no more.
    fn told(&self, delivery: &Delivery) -> (QueueName, String) {
        let word = |name| {
            let table = delivery.properties.headers().as_ref()?;
            match table.inner().get(name)? {
                AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
                _ => None,
            }
        };
        let nowhere = || QueueName::new(NOWHERE).expect("a valid name");
        let Some(from) = word("x-first-death-queue") else {
            return (nowhere(), "a message that is not a job was found among the dead".to_owned());
        };
        let why =
            word("x-first-death-reason").unwrap_or_else(|| "for an unknown reason".to_owned());
        // Names of the broker's queues may be longer than ours.
        let queue = self.names.queue_of(&from).or_else(|| QueueName::new(&from).ok());
        let what = format!("the broker took this message out of {from}: {why}");
        (queue.unwrap_or_else(nowhere), what)
    }

    /// Tries until it is done: a message that we do not acknowledge takes the place of another for as
    /// long as the connection lasts.
    async fn persist<T, F: Future<Output = Result<T>>>(&self, attempt: impl Fn() -> F) -> T {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => tracing::debug!(%error, "a message cannot be dealt with now"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Sorter for Arrivals {
    fn carrier(self: Arc<Self>, jobs: Vec<Carried>, ticket: Ticket) {
        let tickets: Vec<_> = ticket.split(jobs.len()).collect();
        self.sort(jobs.into_iter().zip(tickets).collect());
    }

    fn stranger(self: Arc<Self>, queue: Option<&QueueName>, delivery: Delivery, ticket: Ticket) {
        let (queue, what) = match queue {
            Some(queue) => {
                let what = "a message that is not a job was found in the ready queue".to_owned();
                (queue.clone(), what)
            }
            None => self.told(&delivery),
        };
        tracing::warn!(%queue, %what, "a strange message is put among the dead");
        let job = NewJob {
            id: self.desk.entropy.job_id(self.desk.log.now()),
            queue,
            key: None,
            on_conflict: OnConflict::Keep,
            due: Due::NOW,
            payload: delivery.data.clone().into(),
            headers: headers(&delivery),
            max_attempts: None,
        };
        let arrivals = Arc::clone(&self);
        self.desk.courier.errand(|_| async move {
            let parked = command::Park(vec![(job.into(), what)]);
            let log = &arrivals.desk.log;
            arrivals.persist(|| log.call("park", Effect::None, parked.clone(), |_, _, _| ())).await;
            ticket.done();
            Ok(())
        });
    }
}

/// What of a strange message's headers is text.
fn headers(delivery: &Delivery) -> Headers {
    let properties = &delivery.properties;
    let mut headers = Headers::new();
    if let Some(kind) = properties.content_type() {
        headers.insert(Headers::CONTENT_TYPE, kind.as_str());
    }
    let table = properties.headers().as_ref().map(|table| table.inner());
    for (name, value) in table.into_iter().flatten().take(HEADERS) {
        if let AMQPValue::LongString(text) = value
            && let Ok(text) = std::str::from_utf8(text.as_bytes())
            && text.len() <= HEADER_BYTES
            && !name.as_str().is_empty()
        {
            headers.insert(name.as_str(), text);
        }
    }
    headers
}
