//! The runner: claims due jobs and runs their handlers, the same way on every backend.
//!
//! A *slot* is the right to run one job; the slot count limits concurrency. A *hint* is a message
//! from the store: a job is due at a certain time. A *sweep* is a claim without a hint, at most one
//! *sweep interval* after the last claim; it bounds lateness when hints are lost. A *drained* store
//! gets no new jobs while its jobs still run.
//!
//! Each store has five loops, one task each: `claim`, which `hints` wakes, `settle`, `renew`,
//! `maintain` and `announce`. They share a `store` context. `start` and `execute` run a claimed
//! job. `takers` claims for workers in other processes, and `remote` settles and renews their jobs.
//!
//! Only `verdict` decides between done, retry and dead; only `slots` limits concurrency.

mod ahead;
mod announce;
mod before;
mod build;
mod builder;
mod claim;
mod claim_time;
mod claim_timer;
mod events;
mod execute;
mod flow;
mod hints;
mod late;
mod lease_clock;
mod leases;
mod maintain;
mod objective;
mod pending;
mod recent;
mod remote;
mod renew;
mod run;
mod run_due;
mod settle;
mod shared;
mod signal;
mod slots;
mod start;
mod store;
mod takers;
mod verdict;

pub(crate) use ahead::BATCH;
pub use builder::RunnerBuilder;
pub use events::{Event, Observer};
pub use pending::{PendingQueue, PendingReport, PendingVersion};
pub(crate) use remote::{Remote, RemoteQueue};
pub use run::Runner;
pub use run_due::RunDueReport;
pub use signal::shutdown_signal;
pub(crate) use takers::{Demand, Presence, Taken, Takers, start_claims};
