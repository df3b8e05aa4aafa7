//! Read models, actions, roles and an audit for operators, over a [`Dq`].
//!
//! The dashboard, the HTTP API and the command line are thin layers over this crate, so they cannot
//! disagree. Create one [`Ops`] per client, and take a [`Session`] from it for each request. The
//! session knows who asks, and with which [`Role`]:
//!
//! ```
//! use dq_core::Dq;
//! use dq_ops::{Actor, Ops, Role};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ops = Ops::new(Dq::connect("memory:").await?);
//! let session = ops.session(Actor::new("ann", Role::Operator));
//! for queue in session.overview().await?.queues {
//!     println!("{}: {} scheduled, {} dead", queue.queue, queue.scheduled, queue.dead);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Page sizes, and the steps of forecasts, are clamped so that the store can answer quickly.
//! Forecasts, simulations and backfills out of range are rejected. The [audit](Session::audit)
//! records every write.

mod act;
mod actor;
mod anywhere;
mod audit;
mod bulk;
mod check;
mod cursor;
mod dead;
mod error;
mod filter;
mod forecast;
mod groups;
mod import;
mod input;
mod jobs;
pub mod json;
mod lease;
mod limits;
mod objective;
pub mod openapi;
mod ops;
mod overview;
mod payload;
mod raw_json;
mod redact;
mod runners;
mod schedule;
mod schedules;
mod simulate;
mod text;
mod timeline;
mod watch;
mod work;

pub use act::Moved;
pub use actor::{Actor, Role};
pub use anywhere::JobsAnywhere;
pub use audit::{AuditEntry, AuditOutcome};
pub use bulk::{BulkAction, BulkCount, BulkReport};
pub use check::FindingView;
pub use dead::{DeadGroup, DeadGroups};
#[doc(no_inline)]
pub use dq_core::Dq;
pub use error::{OpsError, Result};
pub use filter::JobFilter;
pub use forecast::{Forecast, ForecastHour, ForecastPeak, Forecasts, QueueForecastView};
pub use groups::{WaitingGroup, WaitingGroups};
pub use input::{
    parse_due, parse_duration, parse_queue, parse_schedule, parse_target, parse_timestamp,
};
pub use jobs::{DeadView, EndedView, JobDetail, JobPage, JobQuery, JobSummary};
pub use limits::{LimitChange, LimitsView};
pub use objective::ObjectiveView;
pub use ops::{Ops, OpsBuilder, Session};
pub use overview::{Overview, QueueSummary};
pub use payload::PayloadView;
pub use raw_json::RawJson;
pub use redact::JobContent;
pub use runners::{Quantiles, RunnerQueueSummary, RunnerSummary, WorkerSummary};
pub use schedule::{ScheduleRequest, ScheduleResult, ScheduledJob};
pub use schedules::{
    BackfillReport, Occurrence, ScheduleDefinition, ScheduleDetail, ScheduleSummary,
};
pub use simulate::{SimulatedQueue, SimulationRequest, SimulationView};
pub use timeline::{EventKind, Presence, Timeline, TimelineEvent, WaitReason};
pub use watch::{Past, PastSlot, PastWindow};
pub use work::{
    ClaimRequest, ClaimedJob, ClaimedJobs, JobResult, RenewalResult, SettlementResult, WorkError,
    WorkOutcome,
};
