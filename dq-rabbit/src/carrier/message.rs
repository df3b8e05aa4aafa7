//! A carrier as a message.
//!
//! The body is the jobs, in the format of the `postcard` crate; so names, keys and headers of any length
//! go through, and the broker has little to read in each of the queues on the way. The message id is that
//! of the first job, the type is `dq.carrier` with the version of this format, and the headers below are
//! for whoever looks at the broker's queues. All of it is made anew each time a carrier is sent: a message
//! that brought its old headers along would look to the broker as if it went in circles.

use bytes::Bytes;
use dq_core::{Headers, Job, JobId, JobKey, NewJob, OnConflict, QueueName, Timestamp};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use serde::{Deserialize, Serialize};

const TYPE: &str = "dq.carrier.1";
/// What those of other versions begin with: a carrier may wait for years.
const ANY_VERSION: &str = "dq.carrier.";

/// When the first of the jobs is due, in Unix milliseconds.
const DUE: &str = "dq-due";
/// How many jobs there are.
const JOBS: &str = "dq-jobs";
/// What the plugin for delayed messages goes by, in milliseconds.
const DELAY: &str = "x-delay";

/// A job on its way.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct Carried {
    /// Which log the job is in.
    pub(crate) log: u64,
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    pub(crate) due: Timestamp,
    key: Option<JobKey>,
    /// Attempts that failed so far.
    attempts: u32,
    max_attempts: Option<u32>,
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
}

impl Carried {
    /// A new job that is due then.
    pub(crate) fn new(log: u64, job: &NewJob, due: Timestamp) -> Self {
        Self {
            log,
            id: job.id,
            queue: job.queue.clone(),
            due,
            key: job.key.clone(),
            attempts: 0,
            max_attempts: job.max_attempts,
            payload: job.payload.clone(),
            headers: job.headers.clone(),
        }
    }

    /// A job of the replica, whose payload and headers are these.
    pub(crate) fn of(log: u64, job: &Job, (payload, headers): (Bytes, Headers)) -> Self {
        Self {
            log,
            id: job.id,
            queue: job.queue.clone(),
            due: job.due,
            key: job.key.clone(),
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            payload,
            headers,
        }
    }

    /// The job, for a log that does not know it.
    pub(crate) fn adopted(&self) -> NewJob {
        NewJob {
            id: self.id,
            queue: self.queue.clone(),
            key: self.key.clone(),
            on_conflict: OnConflict::Keep,
            due: self.due.into(),
            payload: self.payload.clone(),
            headers: self.headers.clone(),
            max_attempts: self.max_attempts,
        }
    }

    /// Bytes that it takes in a message, roughly.
    pub(super) fn weight(&self) -> usize {
        96 + self.payload.len() + self.headers.bytes()
    }
}

/// Jobs of one queue that travel together, in order of their due times; at least one.
#[derive(Debug)]
pub(super) struct Carrier(pub(super) Vec<Carried>);

impl Carrier {
    /// The queue of all of them.
    pub(super) fn queue(&self) -> &QueueName {
        &self.0[0].queue
    }

    /// When the first of them is due.
    pub(super) fn due(&self) -> Timestamp {
        self.0[0].due
    }

    pub(super) fn body(&self) -> Vec<u8> {
        postcard::to_allocvec(&self.0).expect("memory is the only thing that could be missing")
    }

    /// Everything but the body. `delay_ms` is for the plugin.
    pub(super) fn properties(&self, delay_ms: Option<i64>) -> BasicProperties {
        let mut table = FieldTable::default();
        table.insert(DUE.into(), AMQPValue::LongLongInt(self.due().as_millis()));
        let jobs = i64::try_from(self.0.len()).unwrap_or(i64::MAX);
        table.insert(JOBS.into(), AMQPValue::LongLongInt(jobs));
        if let Some(delay) = delay_ms {
            table.insert(DELAY.into(), AMQPValue::LongLongInt(delay));
        }
        BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(ShortString::from(self.0[0].id.to_string()))
            .with_type(TYPE.into())
            .with_headers(table)
    }

    /// The jobs that a message carries; `None` if it is not one of ours. One of another version carries
    /// none: its jobs are run from the log.
    pub(super) fn read(delivery: &Delivery) -> Option<Vec<Carried>> {
        match delivery.properties.kind().as_ref()?.as_str() {
            TYPE => postcard::from_bytes(&delivery.data).ok(),
            kind => kind.starts_with(ANY_VERSION).then(Vec::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(properties: BasicProperties, data: Vec<u8>) -> Delivery {
        let mut delivery = Delivery::mock(1, "due".into(), "q".into(), false, data);
        delivery.properties = properties;
        delivery
    }

    #[test]
    fn what_is_sent_is_read_and_other_versions_carry_nothing() {
        let mut headers = Headers::new();
        headers.insert("colour", "red");
        let job = Carried {
            log: u64::MAX,
            id: JobId::from_bytes([7; 16]),
            queue: QueueName::new("q").unwrap(),
            due: Timestamp::from_millis(-1),
            key: Some(JobKey::new("k").unwrap()),
            attempts: 3,
            max_attempts: Some(5),
            payload: Bytes::from_static(b"payload"),
            headers,
        };
        let carrier = Carrier(vec![job.clone(), Carried { key: None, ..job }]);
        let sent = delivered(carrier.properties(None), carrier.body());
        assert_eq!(Carrier::read(&sent).as_ref(), Some(&carrier.0));

        let newer = carrier.properties(None).with_type("dq.carrier.2".into());
        assert_eq!(Carrier::read(&delivered(newer, vec![1])), Some(Vec::new()));
        let broken = delivered(carrier.properties(None), vec![1]);
        assert_eq!(Carrier::read(&broken), None);
        let strange = BasicProperties::default().with_type("letter".into());
        assert_eq!(Carrier::read(&delivered(strange, carrier.body())), None);
    }
}
