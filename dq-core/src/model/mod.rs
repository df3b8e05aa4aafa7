//! Job and schedule data, with its limits.

mod backoff;
pub(crate) mod codec;
mod conflict;
mod dead;
mod duration;
mod flow;
mod headers;
mod histogram;
mod history;
mod job;
mod key;
mod lateness;
mod limits;
mod name;
mod priority;
mod queue;
mod runner_info;
pub(crate) mod schedule;
mod timestamp;

pub use backoff::Backoff;
pub use conflict::{OnConflict, OnRunning};
pub use dead::{DeadKind, DeadReason, truncate_message};
pub use duration::{format_duration, format_duration_in, format_exact_duration};
pub use flow::{Flow, Rate, RateState, Tokens};
pub use headers::Headers;
pub use histogram::Histogram;
pub use history::{HistoryLimit, HistoryLimits};
pub use job::{Ended, Ending, Job, JobId, JobRef, JobState, JobView, NewJob, Target};
pub use key::JobKey;
pub use lateness::{
    LatenessCause, LatenessCounts, LatenessFacts, LatenessObjective, LatenessStatus,
};
pub use limits::Limits;
pub use priority::Priority;
pub use queue::{Queue, QueueCode, QueueName};
pub use runner_info::{RunnerInfo, RunnerQueue, WorkerInfo};
pub use schedule::{CatchUp, Overlap, ScheduleSpec};
pub use timestamp::{Due, DurationExt, IntoDue, Timestamp};
