//! The settings of an ingress.

use std::path::PathBuf;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{QueueName, Result};
use serde::Deserialize;

use crate::error::invalid_setting;

/// The settings of an ingress, `[[ingress]]`: `type = "amqp"`, `"redis-list"` or `"redis-stream"`,
/// and these keys.
///
/// A *place* says where a value is in a message: `header:NAME` for a header of AMQP or a field of a
/// stream's entry, or a JSON pointer into the body, such as `/order/id`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct IngressSettings {
    /// The broker or server, as in a forward.
    pub url: Secret,
    /// The AMQP queue, or the key of the list or stream.
    pub from: String,
    /// The queue of the jobs.
    pub queue: QueueName,
    /// The place of the job's key. Default: no key. A message whose key is that of a job that waits or
    /// runs schedules nothing.
    #[serde(default)]
    pub key: Option<String>,
    /// The place of the delay in milliseconds. Default: the job is due at once.
    #[serde(default)]
    pub delay: Option<String>,
    /// The place of the message's id. Default: `message_id` of AMQP, the id of a stream's entry.
    #[serde(default)]
    pub id: Option<String>,
    /// How long a message that comes again is recognized after its job has ended. Default 7 days.
    #[serde(default = "default_remember", with = "dq_core::config::duration")]
    pub remember: Duration,
    /// Where messages go that cannot be mapped: an AMQP queue, or the key of a list or stream.
    /// Default: `from` with `.unmapped`.
    #[serde(default)]
    pub unmapped: Option<String>,
    /// The consumer group of a stream. Default `dq`.
    #[serde(default)]
    pub group: Option<String>,
    /// `amqp`: a PEM file with the certificate authority to trust.
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

    /// The consumer group of a stream.
    pub(super) fn group(&self) -> &str {
        self.group.as_deref().unwrap_or("dq")
    }

    /// Refuses settings that another type of source has.
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
