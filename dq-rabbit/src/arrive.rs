//! What becomes of messages that come out of the ladder.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dq_core::{
    Clock, Due, Headers, Job, Listeners, NewJob, OnConflict, QueueName, Result, Timestamp,
};
use lapin::message::Delivery;
use lapin::types::AMQPValue;

use crate::carrier::{Carrier, Held, Sorter, Ticket};
use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{Command, Scheduling};
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

/// What a carrier is for.
enum Fate {
    /// A job that is due soon.
    Hold(Timestamp),
    /// A job that is due later than the ladder reaches.
    Again(Job),
    /// A job that runs, or has ended.
    Drop,
    /// A job that this log has never heard of.
    Adopt,
    /// It cannot be said yet.
    Wait,
}

/// Between two attempts to deal with a message.
const PAUSE: Duration = Duration::from_millis(500);
/// How often it is looked what can be dropped of what is held.
const SWEEP: Duration = Duration::from_secs(60);

impl Arrivals {
    fn fate(&self, carrier: &Carrier) -> Fate {
        let soon = self.desk.log.now() + self.desk.early;
        self.desk.log.peek(|replica| {
            if !replica.is_founded() {
                return Fate::Wait;
            }
            let epoch = replica.epoch();
            let machine = replica.machine();
            match machine.peek(carrier.id) {
                Some(job) if !machine.waits(job.id) => Fate::Drop,
                // If it was moved, whoever did that has sent another one.
                Some(job) if job.due != carrier.due && job.due > soon => Fate::Drop,
                Some(job) if job.due > soon => Fate::Again(job.clone()),
                Some(job) => Fate::Hold(job.due),
                None if carrier.log != epoch => Fate::Adopt,
                None => Fate::Drop,
            }
        })
    }
}

impl Arrivals {
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

    /// Puts a job into the log that is not there, if that is so still when all of the log has been read.
    /// What comes back is to be sorted again.
    async fn adopt(&self, mut carrier: Carrier, ticket: Ticket) -> (Carrier, Ticket) {
        let log = &self.desk.log;
        let (id, of) = (carrier.id, carrier.log);
        let look = || {
            log.call("adopt", Effect::None, Command::Look, move |replica, _, _| {
                let unknown = replica.machine().peek(id).is_none();
                (unknown && replica.epoch() != of, replica.epoch())
            })
        };
        let (unknown, epoch) = self.persist(look).await;
        if unknown {
            tracing::warn!(%id, queue = %carrier.queue,
                "a job arrived that is not in the log: the log was deleted, or lost its end");
            let adopted = Command::Schedule(vec![Scheduling::from(carrier.adopted())]);
            self.persist(|| log.call("adopt", Effect::None, adopted.clone(), |_, _, _| ())).await;
        }
        carrier.log = epoch;
        (carrier, ticket)
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
    fn carrier(self: Arc<Self>, carrier: Carrier, ticket: Ticket) {
        match self.fate(&carrier) {
            Fate::Drop => ticket.done(),
            Fate::Hold(due) => {
                let Carrier { id, queue, payload, headers, .. } = carrier;
                self.desk.hold.keep(
                    &queue,
                    id,
                    due,
                    Held { payload, headers, ticket: Some(ticket) },
                );
                self.listeners.wake(&queue, due);
            }
            Fate::Wait => {
                let arrivals = Arc::clone(&self);
                self.desk.courier.errand(|_| async move {
                    arrivals.desk.log.clock().sleep(PAUSE).await;
                    arrivals.carrier(carrier, ticket);
                    Ok(())
                });
            }
            Fate::Again(job) => {
                let log = self.desk.epoch().unwrap_or(carrier.log);
                let again = Carrier::of(log, &job, (carrier.payload, carrier.headers));
                let arrivals = Arc::clone(&self);
                self.desk.courier.errand(|courier| async move {
                    arrivals
                        .persist(|| {
                            let now = arrivals.desk.log.now();
                            courier.send("carry", std::slice::from_ref(&again), now)
                        })
                        .await;
                    ticket.done();
                    Ok(())
                });
            }
            Fate::Adopt => {
                let arrivals = Arc::clone(&self);
                self.desk.courier.errand(|_| async move {
                    let (carrier, ticket) = arrivals.adopt(carrier, ticket).await;
                    arrivals.carrier(carrier, ticket);
                    Ok(())
                });
            }
        }
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
            let parked = Command::Park(vec![(job.into(), what)]);
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
