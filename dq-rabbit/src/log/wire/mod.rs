//! The log's wire format: entries as bytes.
//!
//! A message is a frame with a checksum (see [`frame`]). **Kinds and bodies are the format** and
//! never change (see [`kinds`]): `postcard` does not mark fields, so it would read wrong values.
//! Types are named like the [`dq_core`] types that they encode.

mod convert;
pub(super) mod entry;
mod frame;
#[cfg(test)]
mod fuzz;
mod kinds;
mod payload;
mod size;
mod state;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use convert::millis;
pub(crate) use entry::{
    Claim, Command, EndedJob, Entry, Gate, HistoryLimits, JobRef, NewJob, Settlement,
    SnapshotEntry, SnapshotHeader, SnapshotJob, SnapshotJobState, SnapshotPart, StandingLease,
    Totals,
};
pub(crate) use frame::{Message, SkipReason, decode, encode};
pub(crate) use payload::{Checksum, Payload};
pub(crate) use size::encoded_size;
pub(crate) use state::other_first_due;
