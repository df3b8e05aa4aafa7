//! The newest messages of the log, from which payloads are read first.

use std::collections::VecDeque;

use bytes::Bytes;

const MAX_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct MessageCache {
    messages: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl MessageCache {
    /// Adds a message with a larger offset than the last one, and evicts the oldest.
    pub(super) fn push(&mut self, offset: u64, message: Bytes) {
        debug_assert!(self.messages.back().is_none_or(|(last, _)| *last < offset));
        self.bytes += message.len();
        self.messages.push_back((offset, message));
        while self.bytes > MAX_BYTES && self.messages.len() > 1 {
            let evicted = self.messages.pop_front();
            self.bytes -= evicted.map_or(0, |(_, message)| message.len());
        }
    }

    pub(super) fn last(&self) -> Option<(u64, Bytes)> {
        self.messages.back().cloned()
    }

    pub(super) fn get(&self, offset: u64) -> Option<&Bytes> {
        let index = self.messages.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(&self.messages[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
