//! Foreign or damaged messages of the stream, which are skipped.

use std::collections::HashMap;

use super::wire::{Checksum, SkipReason};

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SkippedMessages {
    pub(crate) foreign: u64,
    /// With a wrong checksum.
    pub(crate) damaged: u64,
    pub(crate) last_offset: u64,
}

impl SkippedMessages {
    pub(super) fn count(&mut self, offset: u64, reason: SkipReason) {
        tracing::warn!(offset, ?reason, "a message in the log is skipped");
        self.last_offset = offset;
        match reason {
            SkipReason::Damaged => self.damaged += 1,
            SkipReason::Foreign => self.foreign += 1,
        }
    }
}

/// Damaged messages that were read once. A message may be damaged only on the way to this process,
/// and all replicas must skip the same ones. So it is skipped if it is the same when read again.
#[derive(Debug, Default)]
pub(super) struct SuspectMessages(HashMap<u64, Checksum>);

impl SuspectMessages {
    /// Whether to skip the message, or to read it again.
    ///
    /// Foreign messages are skipped at once, because there may be many. A message of the log looks
    /// foreign only if its first three bytes were damaged on the way, which TCP makes unlikely.
    pub(super) fn may_skip(&mut self, offset: u64, reason: SkipReason, message: &[u8]) -> bool {
        match reason {
            SkipReason::Foreign => true,
            SkipReason::Damaged => {
                let read = Checksum::of(message);
                self.0.insert(offset, read) == Some(read)
            }
        }
    }

    pub(super) fn forget_before(&mut self, offset: u64) {
        self.0.retain(|suspect, _| *suspect >= offset);
    }
}
