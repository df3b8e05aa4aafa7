//! Ingress settings.

use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{QueueName, Result};
use serde::Deserialize;

use crate::error::invalid_setting;

/// Ingress settings: `[[ingress]]` with `type = "amqp"`, `"redis-list"` or `"redis-stream"`, and
/// these keys.
///
/// A *place* tells where a message holds a value: `header:NAME` for an AMQP header or a stream
/// entry's field, or a JSON pointer into the body, such as `/order/id`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct IngressSettings {
    /// The broker or server, as in a forward.
    pub url: Secret,
    /// The AMQP queue, or the list's or stream's key.
    pub from: String,
    /// The queue of the jobs.
    pub queue: QueueName,
    /// The place of the job's key; no key by default. A message schedules nothing while a waiting
    /// or running job has its key.
    #[serde(default)]
    pub key: Option<String>,
    /// The place of the delay in milliseconds. By default the job is due at once.
    #[serde(default)]
    pub delay: Option<String>,
    /// The place of the message id; by default AMQP's `message_id` or the stream entry's id.
    #[serde(default)]
    pub id: Option<String>,
    /// How long a repeated message is recognized after its job has ended; 7 days by default.
    #[serde(default = "default_remember", with = "dq_core::config::duration")]
    pub remember: Duration,
    /// Where unmappable messages go: an AMQP queue, or a list's or stream's key. `from` with
    /// `.unmapped` by default.
    #[serde(default)]
    pub unmapped: Option<String>,
    /// The stream's consumer group; `dq` by default.
    #[serde(default)]
    pub group: Option<String>,
    /// For `amqp`: a PEM file with the certificate authorities to trust.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

const fn default_remember() -> Duration {
    Duration::from_secs(7 * 86_400)
}

impl IngressSettings {
    pub(super) fn unmapped(&self) -> String {
        self.unmapped.clone().unwrap_or_else(|| format!("{}.unmapped", self.from))
    }

    pub(super) fn group(&self) -> &str {
        self.group.as_deref().unwrap_or("dq")
    }

    /// Rejects settings that belong to another source type.
    pub(super) fn refuse_others(&self, kind: &str) -> Result<()> {
        let others = [
            ("group", self.group.is_some() && kind != "redis-stream"),
            ("ca", self.ca.is_some() && kind != "amqp"),
        ];
        if let Some((key, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
            return Err(invalid_setting(
                format!("`{key}` is not a setting of {kind}"),
                "remove it",
            ));
        }
        if self.unmapped() == self.from {
            return Err(invalid_setting("`unmapped` is the same as `from`", "choose another name"));
        }
        Ok(())
    }
}
