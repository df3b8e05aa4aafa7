//! Recurring jobs.
//!
//! A *schedule* defines when jobs recur, their queue and their payload. An internal job keeps it:
//! the *schedule job* (`ScheduleJob` in the code). It waits in the reserved queue `dq.schedules`
//! with the schedule's name as key, and is due at the next *occurrence*. Its payload is the
//! specification and the *cursor*, the last handled occurrence.
//!
//! Occurrences and the cursor are *nominal* times, by the schedule itself. The jobs are due later
//! by the schedule's *offset*, its part of the jitter.
//!
//! When due, the schedule job first schedules the occurrence's job. That job's id is derived from
//! the schedule's name and the time, and stays pinned after the job has ended. Then the schedule
//! job is settled with `Again` at the next occurrence. After a crash in between, the occurrence's
//! job gets the same id and still runs once. So any runner may run any schedule job, without a
//! leader or a lock.
//!
//! To change a schedule, a process replaces the schedule job. The new job's id is derived from the
//! old one, so one of several concurrent changes succeeds, and the others read the schedule again.

mod batch;
mod count;
mod declare;
mod handler;
mod occurrence;
mod recurring;
mod schedule_job;
mod store;
mod view;

pub(crate) use declare::Declarations;
pub(crate) use handler::{handler, policy};
pub(crate) use occurrence::{job_of_schedule, occurrence_key};
pub use recurring::{Backfilled, RecurringSchedule};
pub(crate) use schedule_job::{is_supported, queue};
pub use view::ScheduleView;
