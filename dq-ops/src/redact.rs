//! Redaction of payloads, headers and errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use dq_core::{JobView, QueueName};

/// The parts of a job that may hold personal data.
///
/// Your function changes them in place; see [`OpsBuilder::redact`](crate::OpsBuilder::redact).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobContent {
    /// The queue. Changing it has no effect.
    pub queue: QueueName,
    /// The payload; empty where it is not shown.
    pub payload: Bytes,
    /// The headers; empty where they are not shown.
    pub headers: BTreeMap<String, String>,
    /// The last run's error.
    pub last_error: Option<String>,
    /// Why the job is dead or ended.
    pub reason: Option<String>,
}

impl JobContent {
    pub(crate) fn of(view: &JobView, with_payload: bool) -> Self {
        let dead = view.dead.as_ref().map(|(reason, _)| reason.message.clone());
        let ended = view.ended.as_ref().and_then(|ended| ended.reason.clone());
        let headers =
            view.job.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            queue: view.job.queue.clone(),
            payload: if with_payload { view.job.payload.clone() } else { Bytes::new() },
            headers: if with_payload { headers.collect() } else { BTreeMap::new() },
            last_error: view.last_error.clone(),
            reason: dead.or(ended),
        }
    }

    /// Returns a schedule's content; its jobs have no user headers.
    pub(crate) fn of_schedule(queue: QueueName, payload: Bytes) -> Self {
        Self { queue, payload, headers: BTreeMap::new(), last_error: None, reason: None }
    }

    pub(crate) fn has_error(&self, text: &str) -> bool {
        [&self.last_error, &self.reason].into_iter().flatten().any(|error| error.contains(text))
    }
}

impl fmt::Debug for JobContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContent")
            .field("queue", &self.queue)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .finish_non_exhaustive()
    }
}

type Redact = dyn Fn(&mut JobContent) + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct Redaction(Option<Arc<Redact>>);

impl Redaction {
    pub(crate) fn new(redact: impl Fn(&mut JobContent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(redact)))
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn apply(&self, view: &JobView, with_payload: bool) -> JobContent {
        self.redacted(JobContent::of(view, with_payload))
    }

    pub(crate) fn redacted(&self, mut content: JobContent) -> JobContent {
        if let Some(redact) = &self.0 {
            // The framework's jobs contain payloads from other queues, for example a schedule's
            // payload. Checked first, because the function could change the queue.
            let is_reserved = content.queue.is_reserved();
            redact(&mut content);
            if is_reserved {
                content.payload = Bytes::new();
            }
        }
        content
    }
}

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Redaction(a function)" } else { "Redaction(none)" })
    }
}
