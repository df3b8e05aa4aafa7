//! Recurring jobs.
//!
//! A *schedule* says when jobs recur, in which queue, and with which payload. It is kept by a job of
//! its own, the *ticker*, which waits in the reserved queue `dq.tickers` with the schedule's name as
//! its key and is due at the next *occurrence*. The ticker's payload is the specification and the
//! *cursor*, the last occurrence that was handled.
//!
//! A ticker that is due first schedules the job of the occurrence. The id of that job is made from
//! the schedule's name and the time, and stays pinned after the job has ended. Then the ticker is
//! settled with `Again` at the next occurrence. After a crash in between, the job gets the same id,
//! so it still runs once. So any runner may run any ticker, without a leader and without a lock.
//!
//! A ticker is changed by replacing its job. The id of the new job is made from that of the old one,
//! so of several concurrent changes one succeeds, and the others read the ticker again.

mod batch;
mod client;
mod count;
mod declare;
mod plan;
mod store;
mod ticker;

pub use client::{Backfilled, Recurring, RecurringView};
pub(crate) use declare::Declarations;
pub(crate) use ticker::{handler, is_supported, job_of_schedule, occurrence_key, policy, queue};
