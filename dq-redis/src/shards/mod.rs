//! Shards: spread the jobs of a queue over several hash slots of a cluster.
//!
//! # Partitions
//!
//! A partition is a set of Redis keys in one hash slot that holds jobs of one queue. A queue without
//! shards has one, the *unsharded* partition. A queue with `n` shards has `n` partitions; a job is
//! in the one chosen by the hash of its key, or of its id if it has no key. The number of shards is
//! part of the names of the Redis keys, so partitions of different numbers share nothing. Scripts
//! on one partition are atomic; claims, counts and listings visit all partitions of the queue.
//!
//! # Changing the number of shards
//!
//! The number of shards is fixed while the queue holds jobs, dead ones included, while the id of an
//! ended job is pinned, and while the queue is paused. It is stored as a [`Layout`](layout::Layout)
//! in the unsharded partition, whose name does not depend on it, and all calls use the stored
//! number. A call that stores jobs or pauses the queue first changes it to the number in the
//! settings of its process; storing jobs fails if that is not possible. Each change has a sequence
//! number, one more than the last. A change runs in these steps, of which each script call is
//! atomic (`resize.rs`, `scripts/shards.lua`):
//!
//! 1. Close each partition of the old number of shards, unless it is in use: it holds jobs or
//!    pinned ids, or is paused. A closed partition refuses every call. If one is in use, the closed
//!    ones are opened again and the change is refused.
//! 2. Store the new layout, if the stored one is still the one that was read at the beginning.
//! 3. Open each partition of the new number: an earlier change may have closed it.
//!
//! A process whose call is refused by a closed partition reads the stored layout:
//!
//! - It goes on with the stored number. If the call stores jobs and the settings have another
//!   number, it fails if this process has used the number of its settings before: two processes
//!   with different settings must not change it in turns.
//! - If the closed partition is one of the stored number, a change did not complete. The process
//!   stores the same number as a further change, which makes the incomplete change fail at step 2,
//!   and opens the partitions.
//!
//! If all data are deleted (`FLUSHALL`) while processes are connected, these go on with the number
//! that they have cached. The first job that one of them stores in a partition makes it store the
//! number again (`restore_queue`). Until then a process that reads the number takes the queue for
//! one without shards, and may store a job there that has the key of another one.
//!
//! # Why a key is never live twice
//!
//! This holds unless all data are deleted, see above. A key is live while a waiting or leased job has
//! it. Within one number of shards a key always
//! belongs to the same partition. It remains to show that jobs exist only in partitions of the
//! stored number. Closing and opening carry the number of their change, and opening does not undo a
//! closing by a later change. When change `c` stores another number of shards, each partition of the old number
//! has been closed by `c` while it was empty, after change `c - 1` was stored. Only a change after
//! `c` that stores the old number again can open it. Until then the partition refuses calls, even
//! from processes that still use the old number.
//!
//! # What is approximate
//!
//! On a single server one script serves all partitions of a queue, so the oldest jobs are claimed
//! first. In a cluster a claim peeks at the oldest due jobs of each slot, and then claims the
//! oldest of all (`claim.rs`): jobs that other processes schedule or claim in between may change
//! the order. Each slot uses the clock of its node. Counts and listings are not atomic. Totals
//! restart at zero when the number of shards changes, and the history is left behind.

pub(crate) mod layout;
pub(crate) mod leases;
pub(crate) mod partitions;
mod settings;

pub(crate) use settings::{ShardSettings, check, read};
