//! Metric names, descriptions, and histogram bounds.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Settlements of claimed jobs by queue and outcome, including jobs that did not run.
///
/// `stale`: the store ignored the result because the lease was lost, so the job runs, or ran,
/// again. `release`: a stopping runner handed the job back unfinished, or the lease expired during
/// the claim.
pub const JOBS: &str = "dq_jobs_total";

/// Time from due time to handler start, by queue.
///
/// A retry has its own due time.
pub const LATENESS: &str = "dq_lateness_seconds";

/// Run time of handlers including middleware, by queue.
pub const RUN: &str = "dq_run_seconds";

/// Duration of store calls, by operation.
pub const STORE: &str = "dq_store_seconds";

/// Runner slots by state: `busy` with a job, or `free`.
pub const SLOTS: &str = "dq_slots";

/// Leases that the runner found lost before the store answered the settlement, by queue.
///
/// Other lost leases are `stale` in [`JOBS`].
pub const LEASES_LOST: &str = "dq_leases_lost_total";

/// Runners that currently miss a queue's lateness objective, by queue.
///
/// Computed from each runner's starts in the last hour and the late jobs waiting in the store. A
/// queue has no value until it first misses its objective.
pub const LATENESS_MISSED: &str = "dq_lateness_missed";

/// Failed store calls, by error kind.
pub const STORE_FAILURES: &str = "dq_store_failures_total";

/// Upper histogram bounds in seconds, from 1 ms to 1 h.
pub const BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 900.0, 3600.0,
];

pub(crate) fn describe() {
    describe_counter!(
        JOBS,
        "Settlements of claimed jobs by queue and outcome, including jobs that did not run"
    );
    describe_histogram!(LATENESS, Unit::Seconds, "Time from a job's due time to its start");
    describe_histogram!(RUN, Unit::Seconds, "Run time of handlers");
    describe_histogram!(STORE, Unit::Seconds, "Duration of store calls");
    describe_gauge!(SLOTS, "Runner slots by state");
    describe_counter!(LEASES_LOST, "Leases lost before the job was settled");
    describe_gauge!(LATENESS_MISSED, "Runners that miss a queue's lateness objective");
    describe_counter!(STORE_FAILURES, "Failed store calls by error kind");
}
