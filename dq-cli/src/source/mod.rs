//! Source of a command: a store, or a server in front of one.

mod api;
mod connecting;
mod http;
mod open;
mod recurring;
mod store;

use std::time::Duration;

use dq_core::{Due, QueueName, Target, Timestamp};
use dq_ops::{
    BackfillReport, BulkAction, BulkCount, BulkReport, FindingView, Forecasts, JobDetail,
    JobFilter, JobPage, JobQuery, Moved, QueueSummary, RecurringDefinition, RecurringDetail,
    RecurringSummary, RunnerSummary, ScheduleRequest, ScheduledJob, SimulationRequest,
    SimulationView, Timeline,
};

use crate::failure::Result;

#[cfg(test)]
pub(crate) use http::Api;
#[cfg(feature = "redis")]
pub(crate) use open::open_store;
pub(crate) use open::{open, runtime};
#[cfg(any(test, feature = "redis"))]
pub(crate) use store::StoreSource;

/// Operations the commands need. Both implementations return the same values and errors for the
/// same jobs, if the server's token is an admin's. Only lost connections are reported differently.
pub(crate) trait Source: Recurring {
    fn queues(&self) -> Result<Vec<QueueSummary>>;
    fn queue(&self, queue: &QueueName) -> Result<QueueSummary>;
    fn jobs(&self, queue: &QueueName, query: &JobQuery) -> Result<JobPage>;
    fn job(&self, queue: &QueueName, target: &Target) -> Result<JobDetail>;
    fn timeline(&self, queue: &QueueName, target: &Target) -> Result<Timeline>;
    fn cancel(&self, queue: &QueueName, target: &Target) -> Result<()>;
    fn reschedule(&self, queue: &QueueName, target: &Target, due: Due) -> Result<Moved>;
    fn run_now(&self, queue: &QueueName, target: &Target) -> Result<Moved>;
    fn replay(&self, queue: &QueueName, target: &Target) -> Result<()>;
    fn remove(&self, queue: &QueueName, target: &Target) -> Result<()>;
    fn count(&self, queue: &QueueName, action: BulkAction, filter: &JobFilter)
    -> Result<BulkCount>;
    /// With `expected`, changes nothing if more jobs match, or too many to count.
    fn bulk(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
        expected: Option<u64>,
    ) -> Result<BulkReport>;
    fn schedule(&self, queue: &QueueName, request: ScheduleRequest) -> Result<ScheduledJob>;
    fn runners(&self) -> Result<Vec<RunnerSummary>>;
    fn check(&self) -> Result<Vec<FindingView>>;
    /// Returns whether the queue was running before. Refuses an unused queue unless `create` is
    /// set.
    fn pause(&self, queue: &QueueName, create: bool) -> Result<bool>;
    /// Returns whether the queue was paused before.
    fn resume(&self, queue: &QueueName) -> Result<bool>;
    /// `typed` is the queue name the user typed to confirm.
    fn purge(&self, queue: &QueueName, typed: &str) -> Result<u64>;
    /// Closes the connection cleanly.
    fn close(&self) -> dq_core::Result<()>;
}

/// Operations for schedules and forecasts.
pub(crate) trait Recurring {
    fn schedules(&self) -> Result<Vec<RecurringSummary>>;
    /// A schedule with its next `next` occurrences.
    fn recurring(&self, name: &str, next: usize) -> Result<RecurringDetail>;
    /// Returns `false` if the store already had exactly this schedule.
    fn put_schedule(&self, name: &str, definition: &RecurringDefinition) -> Result<bool>;
    /// Returns whether the schedule was running before.
    fn pause_schedule(&self, name: &str) -> Result<bool>;
    /// Returns whether the schedule was paused before.
    fn resume_schedule(&self, name: &str) -> Result<bool>;
    fn skip_next(&self, name: &str) -> Result<()>;
    fn run_schedule(&self, name: &str) -> Result<ScheduledJob>;
    fn backfill(&self, name: &str, after: Timestamp, until: Timestamp) -> Result<BackfillReport>;
    fn remove_schedule(&self, name: &str) -> Result<()>;
    fn forecasts(&self, window: Duration) -> Result<Forecasts>;
    fn simulate(&self, request: &SimulationRequest) -> Result<SimulationView>;
}
