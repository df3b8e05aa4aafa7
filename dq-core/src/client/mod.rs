//! The application's client: schedule, cancel, reschedule, inspect and operate.

mod browse;
mod builder;
mod bulk;
mod dq;
mod filter;
mod forecast;
pub mod import;
mod lateness;
mod pages;
mod queue;
mod runners;
mod schedule;
mod shared;
mod stores;
mod target;

pub use browse::{Browse, Count};
pub use builder::DqBuilder;
pub use bulk::{Bulk, Progress};
pub use dq::Dq;
pub use filter::Filter;
pub use forecast::{ForecastMinute, QueueForecast};
pub use import::{ImportPreview, ImportReport, ImportSource};
pub(crate) use pages::Pages;
pub use queue::QueueHandle;
pub use runners::{RegisteredRunner, UnreadableInfo};
pub use schedule::{IntoTimestamp, Schedule, ScheduleMany};
pub(crate) use shared::ClientShared;
pub use target::{IntoKey, IntoTarget};
