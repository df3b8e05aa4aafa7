//! The reference implementation of the [`Backend`](crate::Backend) contract, as a state machine.
//!
//! [`Machine`] computes each call from its state and a given time. It has no clock, no lock and no
//! I/O. The memory backend is a machine behind a mutex. The RabbitMQ backend stores a log of calls,
//! and each process applies it to a machine: the same log leads to the same state.
//!
//! A job's *placement* is waiting, leased or dead; waiting and leased jobs are *live*. A *slot*
//! identifies a job's record in an arena, a *queue number* a queue in a vector. *Replicas* are
//! machines that apply the same log.
//!
//! Read `state_machine.rs` first: it has the rules. `table.rs` and `queue.rs` have the jobs and
//! their indexes, `history.rs` the ended jobs. `limits.rs` and `gate.rs` limit queues, and
//! `groups.rs` limits groups. `affinity.rs` has claims with preferences.

mod access;
mod affinity;
#[cfg(test)]
mod exhaustive_tests;
mod gate;
#[cfg(test)]
mod group_tests;
mod groups;
mod history;
pub mod index;
mod limits;
mod line;
mod meter;
mod placement;
mod queue;
mod snapshot;
mod state_machine;
mod table;
#[cfg(test)]
mod tests;

pub use affinity::Affinity;
pub use gate::{Gate, Room};
pub use meter::Sizes;
pub use placement::{JobNotes, JobPlacement, Stored};
pub use snapshot::{JobSnapshot, MachineSnapshot};
pub use state_machine::{Machine, MachineHint};
