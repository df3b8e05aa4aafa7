//! Wire format of the log: entries as bytes.
//!
//! A message of the stream is `dq`, one byte for the version of the format, and an
//! [`EntryBatch`](entry::EntryBatch) encoded by the `postcard` crate. **The order of variants and
//! fields is the format**: new commands are added at the end of [`Command`]. A process that reads a
//! command it does not know stops with `Incompatible`, because its replica would differ from the
//! others.
//!
//! Types here have the names of the [`dq_core`] types that they encode: [`NewJob`] is the wire
//! format of [`dq_core::NewJob`].

mod codec;
mod convert;
mod entry;
#[cfg(test)]
mod tests;

pub(crate) use codec::{decode, encode};
pub(crate) use entry::{
    Claim, Command, Entry, JobRef, NewJob, QueueOperation, Renewal, Reschedule, Settlement,
    SnapshotJob, SnapshotJobState, SnapshotPart, Totals,
};
