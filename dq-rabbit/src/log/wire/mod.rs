//! Wire format of the log: entries as bytes.
//!
//! Each message of the stream is a frame with a checksum, and holds entries, each with the number of
//! its kind and the length of its body (see [`frame`]). **Kinds and bodies are the format** and never
//! change (see [`kinds`]): the `postcard` crate does not mark fields, and would read wrong values.
//!
//! A process that does not know the kind of an entry stops with `Incompatible` if the entry *must be
//! understood*, because its replica would differ from the others; otherwise it skips the entry. A
//! message that is foreign or damaged is skipped by all replicas alike. An intact message of a later
//! format stops the process.
//!
//! Types here have the names of the [`dq_core`] types that they encode: [`NewJob`] is the wire
//! format of [`dq_core::NewJob`].

mod convert;
mod entry;
mod frame;
#[cfg(test)]
mod fuzz;
mod kinds;
mod payload;
mod size;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use convert::millis;
pub(crate) use entry::{
    Announcement, Claim, Command, EndedJob, Entry, HistoryLimits, JobRef, NewJob, QueueOperation,
    Renewal, Reschedule, Settlement, SnapshotEntry, SnapshotHeader, SnapshotJob, SnapshotJobState,
    SnapshotPart, StandingLease, Totals,
};
pub(crate) use frame::{EntryBatch, Message, SkipReason, decode, encode};
pub(crate) use payload::{Checksum, Payload};
pub(crate) use size::encoded_size;
pub(crate) use state::other_first_due;
