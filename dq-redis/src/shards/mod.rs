//! Shards spread a queue's jobs over several hash slots of a cluster.
//!
//! # Partitions
//!
//! A partition is a set of Redis keys in one hash slot for jobs of one queue. A queue without
//! shards has one, the *unsharded* partition; a queue with `n` shards has `n`. The hash of a job's
//! key, or of its id if it has no key, chooses the partition. Key names contain the shard count, so
//! partitions of different counts share nothing. Scripts on one partition are atomic; claims,
//! counts and listings visit all partitions.
//!
//! On one server, the partitions of a queue share the keys of its limits, whatever their count, and
//! a claim counts the leases of all. In a cluster no script can, so only a queue with one shard has
//! limits there.
//!
//! # Changing the shard count
//!
//! The shard count is fixed while the queue is *in use*: it holds jobs (also dead ones) or pinned
//! ids, is paused, or has limits in a cluster. The unsharded partition stores it as a
//! [`Layout`](layout::Layout), and all calls use the stored count. A call that stores jobs or
//! pauses the queue first changes the count to its process's setting. If that is not possible,
//! storing jobs fails.
//!
//! Each change has a sequence number and three steps of atomic script calls (`resize.rs`,
//! `scripts/shards.lua`):
//!
//! 1. Close each partition of the old count. A closed partition refuses every call. If one is in
//!    use, reopen the closed ones and refuse the change.
//! 2. Store the new layout, if the stored one has not changed since the beginning.
//! 3. Open each partition of the new count: an earlier change may have closed it.
//!
//! A process refused by a closed partition reads the stored layout:
//!
//! - It goes on with the stored count. If the call stores jobs and the setting differs, the call
//!   fails if this process has used its setting before: two processes with different settings must
//!   not change the count in turns.
//! - If the closed partition belongs to the stored count, a change did not complete. The process
//!   stores the same count as a further change, so that the incomplete change fails at step 2, and
//!   opens the partitions.
//!
//! After `FLUSHALL`, connected processes go on with their cached count. The first job that one of
//! them stores in a partition makes it store the count again (`restore_queue`). Until then, another
//! process takes the queue for unsharded, and may store a job with a key that is live in a shard.
//!
//! # Why a key is never live twice, except after `FLUSHALL`
//!
//! A key is live while a waiting or leased job has it. Within one shard count a key always belongs
//! to the same partition. Jobs exist only in partitions of the stored count: before change `c`
//! stores another count, it closes all partitions of the old count, each while empty and after
//! change `c - 1` was stored. Opening does not undo a later change's closing, so only a later
//! change that stores the old count again can open them.
//!
//! # Limits
//!
//! In a cluster, jobs scheduled or claimed during a claim may change its order, and each slot uses
//! its node's clock. Counts and listings are not atomic. When the shard count changes, totals
//! restart at zero and the history is left behind; limits stay.

pub(crate) mod layout;
pub(crate) mod leases;
pub(crate) mod partitions;
mod settings;

pub(crate) use settings::{ShardSettings, check, read};
