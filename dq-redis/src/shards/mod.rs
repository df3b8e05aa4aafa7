//! Shards: the jobs of a queue with many jobs spread over several slots of a cluster.
//!
//! # Partitions
//!
//! A queue without shards has one partition. A queue with `n` shards has `n` partitions, and a job is in
//! the partition that the hash of its key names, or the hash of its id if it has no key. Each number of
//! shards has keys of its own, so partitions of different numbers share nothing. Scripts that serve one
//! partition are atomic; claims, counts and listings visit all partitions of the queue.
//!
//! # One number at a time
//!
//! The number of shards is fixed while the queue holds jobs, dead ones included. It is stored as a
//! [`Layout`](layout::Layout) in the unsharded partition, which every process knows how to find. A change
//! to another number goes in these steps, each of them atomic (`resize.rs`):
//!
//! 1. All partitions of the old number are closed, each if it holds no jobs. A closed partition refuses
//!    every call. If one holds jobs, those that were closed are opened again and the change is refused.
//! 2. The new number is stored, if the stored layout is still the one that was read at the beginning.
//! 3. All partitions of the new number are opened: an earlier change may have closed them.
//!
//! A process whose call is refused reads the stored layout. If the number is another one than in its
//! settings, the call fails; without a number in its settings it goes on with the stored one. If the
//! number is the same, a change did not complete: the process stores the same number as a further
//! change, which makes the unfinished change fail at its step 2, and opens the partitions.
//!
//! # Why a key is never live twice
//!
//! Within one number of shards, a key always has the same partition. So it remains to show that jobs
//! exist only in partitions of the stored number. Closing and opening carry the number of their change,
//! and opening undoes no closing by a later change. When change `c` stores a new number, each partition of
//! the old one has been closed by `c` while it was empty, after change `c - 1` was stored. Only a change
//! after `c` that stores the old number again can open it. Until then the partition refuses calls, whatever
//! its callers believe the number to be.
//!
//! # What is approximate
//!
//! On a single server one script serves all partitions of a queue, so the oldest jobs are claimed first.
//! In a cluster each slot is asked for its oldest due jobs first, and then the oldest of all are claimed
//! (`claim.rs`): what other processes do in between may be claimed out of order. Each slot uses the clock
//! of its node. Counts and listings are not atomic. Totals start again when the number of shards changes.

pub(crate) mod layout;
pub(crate) mod leases;
pub(crate) mod partitions;
mod settings;

pub(crate) use settings::{ShardSettings, check, read};
