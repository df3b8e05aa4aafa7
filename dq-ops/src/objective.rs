//! Lateness objectives.

use dq_core::{LatenessCause, LatenessStatus};
use serde::{Deserialize, Serialize};

use crate::openapi;

/// A queue's lateness objective and how well it is met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ObjectiveView {
    /// The objective, such as `99% < 100ms`.
    pub objective: String,
    /// Whether it is missed.
    pub missed: bool,
    /// Jobs that started in time in the last hour.
    pub in_time: u64,
    /// Jobs that started late in the last hour.
    pub late: u64,
    /// Jobs that wait and are already late; they count as late starts.
    pub waiting: u64,
    /// The cause: `paused`, `no_runner`, `max_running`, `rate`, `throttled`, `group_full`,
    /// `slots_full`, `handlers_slow`, `store_slow` or `clock_skew`; `None` if no cause was
    /// observed.
    #[schema(value_type = Option<openapi::LatenessCause>)]
    pub cause: Option<LatenessCause>,
}

impl From<&LatenessStatus> for ObjectiveView {
    fn from(status: &LatenessStatus) -> Self {
        Self {
            objective: status.counts.objective.to_string(),
            missed: status.is_missed(),
            in_time: status.counts.in_time,
            late: status.counts.late,
            waiting: status.waiting,
            cause: status.cause,
        }
    }
}
