//! Messages of the stream that are skipped: another program has written them, or they are damaged.

use std::collections::HashMap;

use super::wire::{Checksum, SkipReason};

/// Counts skipped messages, for `check`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SkippedMessages {
    /// Messages that are not in the format of this log.
    pub(crate) foreign: u64,
    /// Messages with a wrong checksum.
    pub(crate) damaged: u64,
    /// Offset of the last one.
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

/// Messages of this log with a wrong checksum that were read once. All replicas must skip the same
/// messages, and one that was damaged on its way to this process is intact for the others. So such a
/// message is skipped only if it is the same when it is read again.
#[derive(Debug, Default)]
pub(super) struct SuspectMessages(HashMap<u64, Checksum>);

impl SuspectMessages {
    /// Whether the message at this offset is to be skipped. If not, it is to be read again.
    ///
    /// Foreign messages are skipped at once: another program may write many of them, and each reading
    /// starts again at the first of them. A message of this log looks foreign only if its first three
    /// bytes were damaged on the way, which TCP and the broker make unlikely.
    pub(super) fn may_skip(&mut self, offset: u64, reason: SkipReason, message: &[u8]) -> bool {
        match reason {
            SkipReason::Foreign => true,
            SkipReason::Damaged => {
                let read = Checksum::of(message);
                self.0.insert(offset, read) == Some(read)
            }
        }
    }

    /// Forgets the messages before this offset, which have been applied or skipped.
    pub(super) fn forget_before(&mut self, offset: u64) {
        self.0.retain(|suspect, _| *suspect >= offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_with_a_wrong_checksum_is_read_again() {
        let mut suspects = SuspectMessages::default();
        assert!(suspects.may_skip(1, SkipReason::Foreign, b"foreign"));
        assert!(!suspects.may_skip(3, SkipReason::Damaged, b"damaged"));
        assert!(!suspects.may_skip(3, SkipReason::Damaged, b"other bytes"));
        assert!(suspects.may_skip(3, SkipReason::Damaged, b"other bytes"));
        suspects.forget_before(4);
        assert!(!suspects.may_skip(3, SkipReason::Damaged, b"other bytes"));
    }
}
