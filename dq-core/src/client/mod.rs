//! The client of an application: schedule, cancel, reschedule, inspect and operate.

mod builder;
mod dq;
pub mod import;
mod queue;
mod schedule;
mod shared;
mod stores;
mod target;

pub use builder::DqBuilder;
pub use dq::Dq;
pub use import::{ImportReport, ImportSource};
pub use queue::QueueHandle;
pub use schedule::{IntoTimestamp, Schedule, ScheduleMany};
pub(crate) use shared::RunnerNameGuard;
pub use target::{IntoKey, IntoTarget};
