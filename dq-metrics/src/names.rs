//! The names of the metrics, their descriptions, and the bounds of histograms.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Settlements of claimed jobs by queue and outcome, also of jobs that did not run.
///
/// Each counts when the store has answered. `stale` is a result that the store has
/// ignored because the lease was lost: the job runs, or ran, again. `release` is a job that was handed
/// back unfinished by a runner that stops, or whose lease ended while it was being claimed.
pub const JOBS: &str = "dq_jobs_total";

/// How long after their due time handlers start, by queue.
///
/// A retry has a due time of its own.
pub const LATENESS: &str = "dq_lateness_seconds";

/// How long handlers run, with their middleware, by queue.
pub const RUN: &str = "dq_run_seconds";

/// How long calls to the store take, by operation.
pub const STORE: &str = "dq_store_seconds";

/// Slots of the runners by state: `busy` with a job, or `free`.
pub const SLOTS: &str = "dq_slots";

/// Leases whose loss the runner noticed before the store answered its settlement, by queue. The others
/// are `stale` in [`JOBS`].
pub const LEASES_LOST: &str = "dq_leases_lost_total";

/// Runners that miss the lateness objective of a queue now, by queue.
///
/// From the starts of the last hour of each runner and the late jobs that wait in the store. A queue
/// whose objective was never missed has no value.
pub const LATENESS_MISSED: &str = "dq_lateness_missed";

/// Failed calls to the store, by the kind of the error.
pub const STORE_FAILURES: &str = "dq_store_failures_total";

/// The upper bounds of the histograms in seconds, from 1 ms to 1 h.
pub const BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 900.0, 3600.0,
];

/// Passes unit and description of each metric to the recorder.
pub(crate) fn describe() {
    describe_counter!(JOBS, "Settled runs of jobs by queue and outcome");
    describe_histogram!(LATENESS, Unit::Seconds, "Time from the due time of a job to its start");
    describe_histogram!(RUN, Unit::Seconds, "Time that handlers run");
    describe_histogram!(STORE, Unit::Seconds, "Time that calls to the store take");
    describe_gauge!(SLOTS, "Slots of runners by state");
    describe_counter!(LEASES_LOST, "Leases that were lost before their run was settled");
    describe_gauge!(LATENESS_MISSED, "Runners that miss the lateness objective of a queue");
    describe_counter!(STORE_FAILURES, "Failed calls to the store by kind of error");
}
