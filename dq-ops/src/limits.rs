//! Limits of queues for all processes.

use std::fmt;

use dq_core::{QueueFlow, QueueName, Rate, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::Result;
use crate::json;
use crate::openapi;
use crate::ops::Session;
use crate::text;

/// A queue's limits for all processes together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct LimitsView {
    /// Maximum number of running jobs.
    pub max_running: Option<u32>,
    /// Maximum number of running jobs of each group.
    pub group_max_running: Option<u32>,
    /// How fast jobs start, such as `10/1s burst 20`.
    pub rate: Option<String>,
    /// Whether an operator has set them. They then replace the runners' own.
    pub overridden: bool,
    /// When the next job may start, if the rate or a handler's throttle lets none start now.
    #[serde(with = "text::option")]
    pub opens_at: Option<Timestamp>,
    /// Whether `opens_at` is the end of a handler's throttle, not the rate's next start.
    #[serde(default)]
    pub throttled: bool,
}

impl LimitsView {
    /// Returns `None` if there is no limit.
    pub(crate) fn of(flow: &QueueFlow) -> Option<Self> {
        let (in_force, overridden) = (flow.in_force(), flow.overriding.is_some());
        (in_force.is_limited() || overridden || flow.opens_at.is_some()).then(|| Self {
            max_running: in_force.max_running,
            group_max_running: in_force.group_max_running,
            rate: in_force.rate.map(|rate| rate.to_string()),
            overridden,
            opens_at: flow.opens_at,
            throttled: flow.throttled_until.is_some(),
        })
    }
}

/// A change of a queue's limits. An absent field keeps the limit in force, `null` removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(min_properties = 1)]
pub struct LimitChange {
    /// Maximum number of running jobs.
    #[serde(deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub max_running: Option<Option<u32>>,
    /// Maximum number of running jobs of each group.
    #[serde(deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub group_max_running: Option<Option<u32>>,
    /// How fast jobs start, such as `10/1s burst 20`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::Rate>)]
    pub rate: Option<Option<Rate>>,
}

fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn present_whole<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Option<u32>>, D::Error> {
    json::whole(deserializer).map(Some)
}

impl fmt::Display for LimitChange {
    /// Prints the changed limits, such as `max_running 3, rate none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number =
            |max: Option<u32>| max.map_or_else(|| "none".to_owned(), |max| max.to_string());
        let rate =
            |rate: Option<Rate>| rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
        let changes = [
            ("max_running", self.max_running.map(number)),
            ("group_max_running", self.group_max_running.map(number)),
            ("rate", self.rate.map(rate)),
        ];
        let changes: Vec<_> = changes
            .iter()
            .filter_map(|(name, to)| Some(format!("{name} {}", to.as_ref()?)))
            .collect();
        f.write_str(&changes.join(", "))
    }
}

/// These need the role operator.
impl Session {
    /// Overrides a queue's limits in all processes, until [`unlimit`](Self::unlimit). Returns
    /// `false` if they are set already.
    ///
    /// # Errors
    /// `NotFound` if no job, runner, schedule or configuration names the queue; `InvalidInput` if
    /// a limit is 0; `Unsupported` if the store keeps no limits.
    pub async fn limit(&self, queue: &QueueName, change: LimitChange) -> Result<bool> {
        let limit = async {
            let handle = self.open(queue)?;
            self.require_known(queue).await?;
            let mut flow = handle.stats().await?.flow.in_force();
            flow.max_running = change.max_running.unwrap_or(flow.max_running);
            flow.group_max_running = change.group_max_running.unwrap_or(flow.group_max_running);
            flow.rate = change.rate.unwrap_or(flow.rate);
            Ok(handle.override_limits(flow).await?)
        };
        let target = Some(change.to_string());
        self.audited("limit", queue, target, |changed| u64::from(*changed), limit).await
    }

    /// Removes an override: the limits that the runners declare count again. Returns `false` if
    /// there is none.
    pub async fn unlimit(&self, queue: &QueueName) -> Result<bool> {
        let unlimit = async { Ok(self.open(queue)?.remove_override().await?) };
        self.audited("unlimit", queue, None, |changed| u64::from(*changed), unlimit).await
    }
}
