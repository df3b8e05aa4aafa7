//! What becomes of messages that come out of the ladder.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Due, Headers, Job, Listeners, NewJob, OnConflict, QueueName, Timestamp};
use lapin::message::Delivery;
use lapin::types::AMQPValue;

use crate::carrier::{Carrier, Held, Sorter, Ticket};
use crate::desk::Desk;
use crate::error::Effect;
use crate::log::{Command, Scheduling};

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
}

/// What a carrier is for.
enum Fate {
    /// A job that is due soon.
    Hold(Timestamp),
    /// A job that is due later by now.
    Again(Job),
    /// A job that runs, or has ended.
    Drop,
    /// A job that this log has never heard of.
    Adopt,
    /// It cannot be said yet.
    Wait,
}

/// How long what cannot be sorted yet waits.
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
                Some(job) if job.due > soon => Fate::Again(job.clone()),
                Some(job) => Fate::Hold(job.due),
                None if carrier.log != epoch => Fate::Adopt,
                None => Fate::Drop,
            }
        })
    }
}

impl Arrivals {
    /// Drops what need not be held any more, until it is dropped.
    pub(crate) async fn sweep(self: Arc<Self>) {
        loop {
            self.desk.log.clock().sleep(SWEEP).await;
            self.desk.sweep();
        }
    }
}

impl Sorter for Arrivals {
    fn carrier(self: Arc<Self>, mut carrier: Carrier, ticket: Ticket) {
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
                let now = self.desk.log.now();
                self.desk.courier.errand(|courier| async move {
                    courier.send("carry", &[again], now).await?;
                    ticket.done();
                    Ok(())
                });
            }
            Fate::Adopt => {
                tracing::warn!(id = %carrier.id, queue = %carrier.queue,
                    "a job arrived that is not in the log: the log was deleted, or lost its end");
                let arrivals = Arc::clone(&self);
                self.desk.courier.errand(|_| async move {
                    let jobs = vec![Scheduling::from(carrier.adopted())];
                    let log = &arrivals.desk.log;
                    carrier.log = log
                        .call("adopt", Effect::None, Command::Schedule(jobs), |replica, _, _| {
                            replica.epoch()
                        })
                        .await?;
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
            None => told(&delivery),
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
            arrivals.desk.log.call("park", Effect::None, parked, |_, _, _| ()).await?;
            ticket.done();
            Ok(())
        });
    }
}

/// What the broker says of a dead letter: which queue it was in, and why it is there no more.
fn told(delivery: &Delivery) -> (QueueName, String) {
    let word = |name| {
        let table = delivery.properties.headers().as_ref()?;
        match table.inner().get(name)? {
            AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
            _ => None,
        }
    };
    let from = word("x-first-death-queue").unwrap_or_else(|| "an unknown queue".to_owned());
    let why = word("x-first-death-reason").unwrap_or_else(|| "for an unknown reason".to_owned());
    let nowhere = || QueueName::new(NOWHERE).expect("a valid name");
    // Names of queues may be longer than ours.
    let queue = QueueName::new(from.clone()).unwrap_or_else(|_| nowhere());
    (queue, format!("the broker took this message out of {from}: {why}"))
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
