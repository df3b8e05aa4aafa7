//! What users hide from operators: parts of payloads, headers and errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use dq_core::{JobView, QueueName};

/// The parts of a job that may hold personal data, for the function that redacts them; see
/// [`OpsBuilder::redact`](crate::OpsBuilder::redact).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobContent {
    /// The queue. Changes of it have no effect.
    pub queue: QueueName,
    /// The payload; empty where it is not shown.
    pub payload: Bytes,
    /// The headers; empty where they are not shown.
    pub headers: BTreeMap<String, String>,
    /// The error of the last run.
    pub last_error: Option<String>,
    /// Why the job is dead, or has ended.
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

    /// The content of the jobs of a schedule, which have no headers of the user's.
    pub(crate) fn of_schedule(queue: QueueName, payload: Bytes) -> Self {
        Self { queue, payload, headers: BTreeMap::new(), last_error: None, reason: None }
    }

    /// Whether the error or the reason contains a text.
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

/// A function that changes what is shown.
type Redact = dyn Fn(&mut JobContent) + Send + Sync;

/// The function that redacts; does nothing by default.
#[derive(Clone, Default)]
pub(crate) struct Redaction(Option<Arc<Redact>>);

impl Redaction {
    pub(crate) fn new(redact: impl Fn(&mut JobContent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(redact)))
    }

    /// Whether there is such a function.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The content of a job as it is shown.
    pub(crate) fn apply(&self, view: &JobView, with_payload: bool) -> JobContent {
        self.redacted(JobContent::of(view, with_payload))
    }

    /// A content as it is shown.
    pub(crate) fn redacted(&self, mut content: JobContent) -> JobContent {
        if let Some(redact) = &self.0 {
            // A job of the framework contains payloads of other queues, such as that of a schedule.
            // Asked before the function, which could change the queue.
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
