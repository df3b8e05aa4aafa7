//! Cache of the newest messages of the log. Payloads that are needed soon are fetched from here.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::wire::EntryBatch;

/// Maximum size of all cached messages, in bytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of messages that are also kept decoded.
const MAX_DECODED: usize = 8;
/// A larger message is not kept decoded: it holds few jobs, since a message is complete at about half of
/// this.
const MAX_DECODED_BYTES: usize = 512 * 1024;

/// The newest messages, in order of their offsets.
#[derive(Debug, Default)]
pub(super) struct MessageCache {
    messages: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Messages from which payloads were fetched. Jobs that were scheduled together are often due
    /// together, and then many claims take them from one message.
    decoded: VecDeque<(u64, Arc<EntryBatch>)>,
}

impl MessageCache {
    /// Adds a message, whose offset is larger than that of the last one, and evicts the oldest ones
    /// that exceed the capacity. A log that begins again has a new cache.
    pub(super) fn push(&mut self, offset: u64, message: Bytes) {
        debug_assert!(self.messages.back().is_none_or(|(last, _)| *last < offset));
        self.bytes += message.len();
        self.messages.push_back((offset, message));
        while self.bytes > MAX_BYTES && self.messages.len() > 1 {
            if let Some((evicted, message)) = self.messages.pop_front() {
                self.bytes -= message.len();
                self.decoded.retain(|(offset, _)| *offset != evicted);
            }
        }
    }

    /// The newest message and its offset.
    pub(super) fn last(&self) -> Option<(u64, Bytes)> {
        self.messages.back().cloned()
    }

    /// The message at this offset, if it is cached.
    pub(super) fn get(&self, offset: u64) -> Option<&Bytes> {
        let index = self.messages.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(&self.messages[index].1)
    }

    /// The entries of the message at this offset, if they are kept.
    pub(super) fn get_decoded(&self, offset: u64) -> Option<Arc<EntryBatch>> {
        let mut decoded = self.decoded.iter();
        decoded.find(|(kept, _)| *kept == offset).map(|(_, batch)| Arc::clone(batch))
    }

    /// Keeps the entries of a message in place of those that were kept first. Does nothing if this
    /// message is not cached any more.
    pub(super) fn keep_decoded(&mut self, offset: u64, message: &Bytes, batch: Arc<EntryBatch>) {
        // The log may have begun again while the message was decoded.
        let is_cached = self.get(offset).is_some_and(|cached| cached.as_ptr() == message.as_ptr());
        if !is_cached || message.len() > MAX_DECODED_BYTES || self.get_decoded(offset).is_some() {
            return;
        }
        if self.decoded.len() == MAX_DECODED {
            self.decoded.pop_front();
        }
        self.decoded.push_back((offset, batch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_of_a_cached_message_are_kept() {
        let batch = Arc::new(EntryBatch { entries: Vec::new() });
        let mut cache = MessageCache::default();
        let messages: Vec<_> = (0..=MAX_DECODED).map(|_| Bytes::from(vec![0; 9])).collect();
        for (offset, message) in (0..).zip(&messages) {
            cache.push(offset, message.clone());
            cache.keep_decoded(offset, message, Arc::clone(&batch));
        }
        assert!(cache.get_decoded(0).is_none(), "others have taken its place");
        assert!((1..=MAX_DECODED as u64).all(|offset| cache.get_decoded(offset).is_some()));
        let of_another_log = Bytes::from(vec![0; 9]);
        cache.keep_decoded(0, &of_another_log, Arc::clone(&batch));
        cache.keep_decoded(99, &messages[0], batch);
        assert!(cache.get_decoded(0).is_none() && cache.get_decoded(99).is_none());
    }

    #[test]
    fn old_messages_are_evicted() {
        let mut cache = MessageCache::default();
        for offset in [5, 6, 8] {
            cache.push(offset, Bytes::from(vec![0; MAX_BYTES / 2]));
        }
        assert!(cache.get(5).is_none() && cache.get(6).is_some() && cache.get(8).is_some());
        assert!(cache.get(7).is_none() && cache.get(9).is_none() && cache.get(0).is_none());
    }
}
