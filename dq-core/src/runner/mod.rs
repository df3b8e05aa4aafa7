//! The runner: claims due jobs and runs their handlers, in the same way for every backend.
//!
//! A *slot* is the right to run one job; the number of slots limits concurrency. A *hint* is a message of
//! the store that a job is due at a certain time. A *sweep* is a claim without any hint, at the
//! latest one *sweep interval* after the last claim; it bounds the lateness of jobs if hints are
//! lost. A store is *drained* if it receives no new jobs while its jobs still run.
//!
//! Each store, the main one and each drained one, has one task for each of five loops: `claim`
//! claims due jobs and starts them (`execute` runs one handler; `hints` wakes the loop), `settle`
//! reports results to the store, `renew` extends leases (`leases` tracks them, by the time of
//! `lease_clock`), `maintain` logs findings of the store, and due jobs in queues without a handler, and
//! `announce` tells the other users of the store that the runner exists. `late` applies the late
//! policy of a queue before a run; `verdict` alone decides between done, retry and dead; `slots`
//! alone limits concurrency, and `ahead` says how many jobs a claim takes beyond the free slots;
//! `recent` keeps the lateness and the run times of the last minutes; `objective` compares the starts
//! of the last hour, which `start_window` counts, with the lateness objectives, and `claim_time`
//! measures how long the store takes to answer a claim; `store` holds what the loops of one store
//! share.

mod ahead;
mod announce;
mod builder;
mod claim;
mod claim_schedule;
mod claim_time;
mod events;
mod execute;
mod hints;
mod late;
mod lease_clock;
mod leases;
mod maintain;
mod objective;
mod pending;
mod recent;
mod renew;
mod run;
mod run_due;
mod settle;
mod shared;
mod signal;
mod slots;
mod start_window;
mod store;
mod verdict;

pub use builder::RunnerBuilder;
pub use events::{Event, Observer};
pub use pending::{PendingQueue, PendingReport, PendingVersion};
pub use run::Runner;
pub use run_due::RunDueReport;
pub use signal::shutdown_signal;
