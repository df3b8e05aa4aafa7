//! The runner on the memory backend and a virtual clock. Tests wait for runner events and never
//! sleep.

mod announce;
mod builder;
mod clocks;
mod drain;
mod failures;
pub(crate) mod faulty;
pub(crate) mod fixture;
mod forecast;
mod leases;
mod limits;
mod log_lines;
mod logs;
mod objectives;
mod outages;
mod panics;
mod priority;
mod run_due;
mod schedule_jobs;
mod shutdown;
mod slots;
mod timeouts;
mod trace;
