//! Schedules the jobs of an ingress's messages into their queue.

use std::time::Duration;

use dq_core::{Backend, BoxError, Dq, Error, ErrorKind, Headers, QueueHandle, QueueName, Result};
use futures_util::future::join_all;

use super::mapping::{Mapped, Mapping, Message};
use super::settings::IngressSettings;
use super::step;
use crate::error::invalid_setting;

/// Time limit for storing a job, so that a silent store does not block a source forever.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The content type that handlers decode.
const JSON: &str = "application/json";
/// Limit for a reason, in bytes. A header carries it, and brokers limit headers.
const MAX_REASON_BYTES: usize = 1024;

pub(super) struct Target {
    dq: Dq,
    handle: QueueHandle,
    queue: QueueName,
    mapping: Mapping,
    remember: Duration,
    /// The source type and its queue, list or stream.
    name: String,
}

pub(super) enum Taken {
    /// The job is stored, now or earlier.
    Stored,
    /// The message cannot become a job, for this reason.
    Unmapped(String),
}

impl Target {
    /// Builds a source's target. `address` is the server's; message ids are unique only within it.
    /// Errors: `Config` naming the unusable setting, `Unsupported` if the store cannot pin ids.
    pub(super) fn new(
        dq: &Dq,
        kind: &str,
        address: &str,
        settings: &IngressSettings,
    ) -> Result<Self> {
        settings.refuse_others(kind)?;
        // Checked here, because the store would reject every message.
        if settings.queue.is_reserved() {
            return Err(invalid_setting("`queue` is a reserved name", "choose another queue"));
        }
        if settings.remember > dq.limits().horizon {
            return Err(invalid_setting(
                "`remember` is longer than the store plans ahead",
                "remember messages for a shorter time, such as `7d`",
            ));
        }
        if !settings.remember.is_zero() && !dq.backend().capabilities().history {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the store cannot pin ids, so messages that come again would be scheduled again",
            )
            .remedy(
                "use another store, or set `remember = \"0s\"` and make the handler idempotent",
            ));
        }
        Ok(Self {
            dq: dq.clone(),
            handle: dq.queue(settings.queue.as_str())?,
            queue: settings.queue.clone(),
            // The scope includes group and queue: two stream groups each take all messages, and a
            // message may become a job in two queues.
            mapping: Mapping::new(
                &[kind, address, &settings.from, settings.group(), settings.queue.as_str()],
                settings,
            )?,
            remember: settings.remember,
            name: format!("{kind} {}", settings.from),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn queue(&self) -> &QueueName {
        &self.queue
    }

    #[cfg(feature = "redis")]
    pub(super) fn new_id(&self) -> dq_core::JobId {
        self.dq.new_id()
    }

    /// Stores the messages' jobs. Returns each message's result by index, and the last store
    /// failure; failed messages are left out. Stored messages come first, so that a failure to set
    /// one aside does not block their acknowledgements.
    pub(super) async fn take(
        &self,
        messages: &[Message],
    ) -> (Vec<(usize, Taken)>, Result<(), BoxError>) {
        step("received");
        let results = join_all(messages.iter().map(|message| self.store(message)));
        let (mut taken, mut failure) = (Vec::new(), Ok(()));
        for (index, result) in results.await.into_iter().enumerate() {
            match result {
                Ok(result) => taken.push((index, result)),
                Err(error) => failure = Err(error),
            }
        }
        taken.sort_by_key(|(_, taken)| !matches!(taken, Taken::Stored));
        (taken, failure)
    }

    /// Reads a message's values, or the reason why it cannot become a job.
    fn map(&self, message: &Message) -> Result<Mapped, String> {
        if let Some(reason) = &message.unreadable {
            return Err(reason.clone());
        }
        // The size is checked before parsing, which takes several times the memory.
        let (size, limit) = (message.body.len(), self.dq.limits().payload);
        if size > limit {
            return Err(format!(
                "the body has {size} bytes; at most {limit} are allowed (`limits.payload`)"
            ));
        }
        self.mapping.map(message)
    }

    /// Stores a message's job. After an error the job may still be stored; with a message id,
    /// repeating the call is safe.
    /// safe.
    async fn store(&self, message: &Message) -> Result<Taken, BoxError> {
        let mapped = match self.map(message) {
            Ok(mapped) => mapped,
            Err(reason) => return Ok(self.unmapped(message, reason)),
        };
        step("mapped");
        let id = mapped.id.unwrap_or_else(|| self.dq.new_id());
        let content_type = content_type(message);
        let mut job =
            self.handle.schedule(message.body.clone(), content_type).after(mapped.delay).id(id);
        if let Some(key) = mapped.key {
            job = job.key(key);
        }
        if mapped.id.is_some() {
            job = job.remember(self.remember);
        }
        if let Some(traceparent) = message.headers.get("traceparent") {
            job = job.header("traceparent", traceparent);
        }
        let scheduled = tokio::time::timeout(TIMEOUT, job.into_future()).await;
        match scheduled.map_err(|_| format!("the store did not answer within {TIMEOUT:?}"))? {
            Ok(scheduled) => {
                step("stored");
                tracing::debug!(from = self.name, ?scheduled, "a message was taken");
                Ok(Taken::Stored)
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Codec) => {
                Ok(self.unmapped(message, error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn unmapped(&self, message: &Message, mut reason: String) -> Taken {
        while reason.len() > MAX_REASON_BYTES {
            reason.pop();
        }
        let id = message.id.as_deref().unwrap_or("none");
        tracing::error!(from = self.name, id, reason, "a message cannot become a job");
        Taken::Unmapped(reason)
    }
}

/// Returns the job's content type. JSON gets the name that handlers expect, without parameters such
/// as `charset=utf-8`, which mean nothing for JSON.
fn content_type(message: &Message) -> &str {
    let given = message.content_type.as_deref().unwrap_or(JSON);
    if Headers::is_json(given) { JSON } else { given }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_named_as_handlers_expect_it() {
        for (given, expected) in [
            (None, JSON),
            (Some("Application/JSON; charset=utf-8"), JSON),
            (Some("text/plain; charset=utf-8"), "text/plain; charset=utf-8"),
        ] {
            let given = given.map(str::to_owned);
            let message = Message { content_type: given, ..Message::default() };
            assert_eq!(content_type(&message), expected);
        }
    }
}
