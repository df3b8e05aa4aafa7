//! The format of job messages.
//!
//! The body has the jobs in `postcard` format, so queue names, keys and headers of any length fit,
//! and the broker parses little in each queue. The message id is the first job's id, the type is
//! `dq.carrier.` with the format's version. The AMQP headers are informative, except for `x-delay`,
//! by which the delayed-message plugin delays.
//!
//! A job that is published again gets new properties. With an `x-death` header from its earlier way
//! through the ladder, the broker would see a cycle and drop it.

use bytes::Bytes;
use dq_core::{Headers, Job, JobId, JobKey, NewJob, QueueName, Timestamp};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use serde::{Deserialize, Serialize};

const TYPE: &str = "dq.carrier.1";
/// The type of all formats. A message may wait for years, so another version may have written it.
const TYPE_PREFIX: &str = "dq.carrier.";

/// The first job's due time in Unix milliseconds.
const DUE: &str = "dq-due";
const JOBS: &str = "dq-jobs";
/// Milliseconds, for the plugin.
const DELAY: &str = "x-delay";

/// A job in a message. The fields' order is the format.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct PublishedJob {
    /// The log that contains the job. If it was deleted, the job is scheduled in the new one.
    pub(crate) log_id: u64,
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    pub(crate) due: Timestamp,
    key: Option<JobKey>,
    max_attempts: Option<u32>,
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
}

impl PublishedJob {
    pub(crate) fn new(log_id: u64, job: &NewJob, due: Timestamp) -> Self {
        Self {
            log_id,
            id: job.id,
            queue: job.queue.clone(),
            due,
            key: job.key.clone(),
            max_attempts: job.max_attempts,
            payload: job.payload.clone(),
            headers: job.headers.clone(),
        }
    }

    /// Copies a replica's job, which has no payload, and of the headers only the group.
    pub(crate) fn from_job(log_id: u64, job: &Job, headers: Headers, payload: Bytes) -> Self {
        Self {
            log_id,
            id: job.id,
            queue: job.queue.clone(),
            due: job.due,
            key: job.key.clone(),
            max_attempts: job.max_attempts,
            payload,
            headers,
        }
    }

    /// Makes a new job for a log that does not contain it. It has all attempts and no pinned id,
    /// because the message says nothing about them.
    pub(crate) fn to_new_job(&self) -> NewJob {
        let mut job = NewJob::new(self.id, self.queue.clone(), self.due, self.payload.clone());
        job.key.clone_from(&self.key);
        job.headers.clone_from(&self.headers);
        job.max_attempts = self.max_attempts;
        job
    }

    pub(super) fn approx_size(&self) -> usize {
        96 + self.payload.len() + self.headers.size_bytes()
    }
}

#[derive(Debug)]
pub(crate) struct JobMessage(pub(super) Vec<PublishedJob>);

impl JobMessage {
    pub(super) fn queue(&self) -> &QueueName {
        &self.0[0].queue
    }

    pub(super) fn due(&self) -> Timestamp {
        self.0[0].due
    }

    pub(super) fn body(&self) -> Vec<u8> {
        postcard::to_allocvec(&self.0).expect("serialization to memory does not fail")
    }

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

    /// Parses a delivery; `None` if it is not a job message. Another version's message yields no
    /// jobs, and they run from the log.
    pub(crate) fn parse(delivery: &Delivery) -> Option<Vec<PublishedJob>> {
        match delivery.properties.kind().as_ref()?.as_str() {
            TYPE => postcard::from_bytes(&delivery.data).ok(),
            kind => kind.starts_with(TYPE_PREFIX).then(Vec::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(properties: BasicProperties, data: Vec<u8>) -> Delivery {
        let mut mock = Delivery::mock(1, "due".into(), "q".into(), false, data);
        mock.properties = properties;
        mock
    }

    fn message() -> JobMessage {
        let job = |number: u8, headers| PublishedJob {
            log_id: u64::MAX,
            id: JobId::from_bytes([number; 16]),
            queue: QueueName::new("q").unwrap(),
            due: Timestamp::from_millis(-1),
            key: None,
            max_attempts: None,
            payload: Bytes::from_static(b"payload"),
            headers,
        };
        let headers = Headers::from_iter([("colour", "red"), ("size", "")]);
        let full = PublishedJob {
            key: Some(JobKey::new("k").unwrap()),
            max_attempts: Some(5),
            ..job(7, headers)
        };
        let due = Timestamp::from_millis(1_700_000_000_123);
        JobMessage(vec![full, PublishedJob { due, ..job(8, Headers::new()) }])
    }

    /// The body of [`message`]: the number of jobs; for each job the log's id, the job id with its
    /// length, the queue, the due time, the key, the maximum of attempts, the payload, and the
    /// headers with their number. Integers are varints, the due time is zigzag-encoded, `00` is an
    /// absent option.
    const BODY: &str = "02\
ffffffffffffffffff01100707070707070707070707070707070701710101016b0105077061796c6f61640206636f6c6f7572037265640473697a6500\
ffffffffffffffffff0110080808080808080808080808080808080171f6a1abfef9620000077061796c6f616400";

    #[test]
    fn the_bytes_of_a_message_stay_the_same() {
        let message = message();
        let hex: String = message.body().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, BODY, "RabbitMQ holds messages with the old bytes");

        let properties = message.properties(Some(1_000));
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(*properties.kind(), Some("dq.carrier.1".into()));
        let id = "07070707-0707-0707-0707-070707070707";
        assert_eq!(*properties.message_id(), Some(id.into()));
        let headers = properties.headers().as_ref().unwrap().inner();
        for (name, value) in [("dq-due", -1), ("dq-jobs", 2), ("x-delay", 1_000)] {
            assert_eq!(headers.get(name), Some(&AMQPValue::LongLongInt(value)), "{name}");
        }
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn messages_round_trip_and_other_versions_yield_no_jobs() {
        let message = message();
        let sent = delivery(message.properties(None), message.body());
        assert_eq!(JobMessage::parse(&sent).as_ref(), Some(&message.0));

        let newer = message.properties(None).with_type("dq.carrier.2".into());
        assert_eq!(JobMessage::parse(&delivery(newer, vec![1])), Some(Vec::new()));
        let broken = delivery(message.properties(None), vec![1]);
        assert_eq!(JobMessage::parse(&broken), None);
        let foreign = BasicProperties::default().with_type("letter".into());
        assert_eq!(JobMessage::parse(&delivery(foreign, message.body())), None);
    }

    #[test]
    fn mutated_messages_are_parsed_or_refused() {
        let message = message();
        let properties = message.properties(None);
        dq_testkit::fuzz::check("job messages", &[message.body()], |body| {
            let jobs = JobMessage::parse(&delivery(properties.clone(), body.to_vec()));
            let is_accepted = jobs.is_some();
            for job in jobs.into_iter().flatten() {
                drop(job.to_new_job());
            }
            is_accepted
        });
    }
}
