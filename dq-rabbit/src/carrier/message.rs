//! A carrier as a message.
//!
//! The body is the payload. The message id is that of the job, the type is `dq.carrier`, and the headers
//! are those below; the job's own headers are a table in one of them. All of it is made anew each time a
//! carrier is sent: a message that brought its old headers along would look to the broker as if it went
//! in circles.

use bytes::Bytes;
use dq_core::{Headers, Job, JobId, JobKey, NewJob, OnConflict, QueueName, Timestamp};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};

const TYPE: &str = "dq.carrier";

/// Which log the job is in.
const LOG: &str = "dq-log";
const QUEUE: &str = "dq-queue";
/// Unix milliseconds.
const DUE: &str = "dq-due";
const KEY: &str = "dq-key";
/// Attempts that failed so far.
const ATTEMPTS: &str = "dq-attempts";
const MAX_ATTEMPTS: &str = "dq-max-attempts";
const HEADERS: &str = "dq-headers";
/// What the plugin for delayed messages goes by, in milliseconds.
const DELAY: &str = "x-delay";

/// A job on its way.
#[derive(Debug, Clone)]
pub(crate) struct Carrier {
    pub(crate) log: u64,
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    pub(crate) due: Timestamp,
    key: Option<JobKey>,
    attempts: u32,
    max_attempts: Option<u32>,
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
}

impl Carrier {
    /// Of a new job that is due then.
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

    /// Of a job of the replica, whose payload and headers are these.
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

    /// Everything but the body. `delay_ms` is for the plugin.
    pub(super) fn properties(&self, delay_ms: Option<i64>) -> BasicProperties {
        let mut table = FieldTable::default();
        // As text: the largest numbers of AMQP 0.9.1 are signed.
        table.insert(LOG.into(), text(&format!("{:016x}", self.log)));
        table.insert(QUEUE.into(), text(self.queue.as_str()));
        table.insert(DUE.into(), AMQPValue::LongLongInt(self.due.as_millis()));
        if let Some(key) = &self.key {
            table.insert(KEY.into(), text(key.as_str()));
        }
        if self.attempts > 0 {
            table.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(self.attempts.into()));
        }
        if let Some(max) = self.max_attempts {
            table.insert(MAX_ATTEMPTS.into(), AMQPValue::LongLongInt(max.into()));
        }
        if !self.headers.is_empty() {
            // Names of fields are shorter than those of headers may be, so those are values too.
            let pairs: Vec<_> =
                self.headers.iter().flat_map(|(name, value)| [text(name), text(value)]).collect();
            table.insert(HEADERS.into(), AMQPValue::FieldArray(pairs.into()));
        }
        if let Some(delay) = delay_ms {
            table.insert(DELAY.into(), AMQPValue::LongLongInt(delay));
        }
        BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(ShortString::from(self.id.to_string()))
            .with_type(TYPE.into())
            .with_headers(table)
    }

    /// The carrier that a message is; `None` if it is not one of ours.
    pub(super) fn read(delivery: &Delivery) -> Option<Self> {
        let properties = &delivery.properties;
        if properties.kind().as_ref()?.as_str() != TYPE {
            return None;
        }
        let id = properties.message_id().as_ref()?.as_str().parse().ok()?;
        let table = properties.headers().as_ref()?;
        let number = |name| match table.inner().get(name)? {
            AMQPValue::LongLongInt(number) => Some(*number),
            _ => None,
        };
        let words = |name| table.inner().get(name).and_then(word);
        let mut headers = Headers::new();
        if let Some(AMQPValue::FieldArray(pairs)) = table.inner().get(HEADERS) {
            for pair in pairs.as_slice().chunks_exact(2) {
                headers.insert(word(&pair[0])?, word(&pair[1])?);
            }
        }
        Some(Self {
            log: u64::from_str_radix(&words(LOG)?, 16).ok()?,
            id,
            queue: QueueName::new(words(QUEUE)?).ok()?,
            due: Timestamp::from_millis(number(DUE)?),
            key: match words(KEY) {
                Some(key) => Some(JobKey::new(key).ok()?),
                None => None,
            },
            attempts: u32::try_from(number(ATTEMPTS).unwrap_or(0)).ok()?,
            max_attempts: number(MAX_ATTEMPTS).and_then(|max| u32::try_from(max).ok()),
            payload: Bytes::copy_from_slice(&delivery.data),
            headers,
        })
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

pub(super) fn word(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}
