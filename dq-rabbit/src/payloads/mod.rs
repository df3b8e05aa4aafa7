//! Reads the payloads of a replica's jobs until each is found or lost. `buffer` keeps payloads that
//! claims need soon, `read_ahead` fills it, and `stale` empties it.

pub(crate) mod buffer;
pub(crate) mod misses;
pub(crate) mod read_ahead;
pub(crate) mod stale;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dq_core::{JobId, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::wire::Command;
use crate::log::{PayloadRef, ReadPurpose, Replica};

#[derive(Debug, Default)]
pub(crate) struct PayloadReads {
    pub(crate) unread: HashMap<JobId, PayloadRef>,
    pub(crate) found: HashMap<JobId, Bytes>,
    pub(crate) lost: HashSet<JobId>,
}

impl Engine {
    /// Reads until all payloads are found or lost. A job that has ended or has another payload by
    /// now stays unread.
    ///
    /// # Errors
    /// If the log cannot be read. `reads` then has the payloads read before.
    pub(crate) async fn read_payloads(
        &self,
        reads: &mut PayloadReads,
        purpose: ReadPurpose,
    ) -> Result<()> {
        let PayloadReads { unread, found, lost } = reads;
        while !unread.is_empty() {
            let stored = unread.iter().map(|(id, stored)| (*id, *stored));
            let read = self.log.read_payloads(stored, purpose).await?;
            unread.retain(|id, _| !read.contains_key(id));
            found.extend(read);
            if unread.is_empty() {
                break;
            }
            // After everything in the log was read.
            let ids: Vec<_> = unread.keys().copied().collect();
            let positions = move |replica: &mut Replica, (), _| -> HashMap<_, _> {
                let machine = replica.machine();
                let stored = |id| Some((id, machine.stored(id)?.payload));
                ids.into_iter().filter_map(stored).collect()
            };
            let operation = match purpose {
                ReadPurpose::Run => "claim",
                ReadPurpose::View => "browse",
            };
            let barrier = Command::Barrier;
            let current =
                self.log.call(operation, LostReply::Unavailable, barrier, positions).await?;
            unread.retain(|id, stored| {
                let is_lost = current.get(id) == Some(&*stored);
                if is_lost {
                    lost.insert(*id);
                }
                !is_lost
            });
            // A snapshot may have moved payloads meanwhile, and the broker may have deleted the old
            // streams.
            let mut has_moved = false;
            for (id, stored) in unread.iter_mut() {
                if let Some(moved) = current.get(id)
                    && moved.checksum == stored.checksum
                {
                    *stored = *moved;
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
        Ok(())
    }
}
