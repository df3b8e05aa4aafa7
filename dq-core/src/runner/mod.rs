//! The runner: claims due jobs and runs their handlers, in the same way for every backend.
//!
//! A *slot* is the right to run one job; their numbers limit concurrency. A *hint* is a message of
//! the store that a job is due at a certain time. A *sweep* is a claim without any hint, at the
//! latest one *sweep interval* after the last claim; it bounds the lateness of jobs if hints are
//! lost. A store is *drained* if it receives no new jobs while its jobs still run.
//!
//! Each store, the main one and each drained one, has one task for each of four loops: `claim`
//! claims due jobs and starts them (`execute` runs one handler), `settle` reports results to the
//! store, `renew` extends leases, and `maintain` logs findings of the store and queues without a
//! handler. `verdict` alone decides between done, retry and dead; `slots` alone limits concurrency;
//! `store` holds what the loops of one store share.

mod builder;
mod claim;
mod claim_schedule;
mod events;
mod execute;
mod leases;
mod maintain;
mod renew;
mod run;
mod run_due;
mod settle;
mod shared;
mod slots;
mod store;
mod verdict;

pub use builder::RunnerBuilder;
pub use events::{Event, Observer};
pub use run::Runner;
pub use run_due::RunDueReport;
