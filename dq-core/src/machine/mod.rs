//! The reference implementation of the [`Backend`](crate::Backend) contract, as a state machine.
//!
//! [`Machine`] performs each call as a function of its state and a given time. It has no clock, no
//! lock and no I/O. The memory backend is a machine behind a mutex. A backend whose store is a log
//! of calls (RabbitMQ) applies the log to a machine in each process: the same calls at the same
//! times lead to the same state.
//!
//! Terms: a job *waits*, is *leased* or is *dead* (its *placement*); a job that waits or is leased
//! is *live*. The record of a job is identified by its *slot* in an arena, a queue by its *index*
//! in a vector. *Replicas* are machines to which the same log is applied.
//!
//! Read `state_machine.rs` first: it has the rules. `table.rs` has the jobs and the indexes over
//! them, `history.rs` those that have ended, `affinity.rs` the order in which claimers with
//! preferences get jobs, `snapshot.rs` the export and import of the state, `meter.rs` its size,
//! `access.rs` what backends need besides the calls.

mod access;
mod affinity;
mod history;
pub mod index;
mod meter;
mod operation;
mod placement;
mod snapshot;
mod state_machine;
mod table;
#[cfg(test)]
mod tests;

pub use affinity::Affinity;
pub use meter::Sizes;
pub use operation::OwnedOperation;
pub use placement::{JobNotes, JobPlacement};
pub use snapshot::{JobSnapshot, MachineSnapshot};
pub use state_machine::Machine;
