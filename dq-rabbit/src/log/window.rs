//! The newest messages of the log, as they were read: payloads that are needed soon are here.

use std::collections::VecDeque;

use bytes::Bytes;

/// Bytes that are kept.
const SIZE: usize = 16 * 1024 * 1024;

/// Messages in order of their offsets.
#[derive(Debug, Default)]
pub(super) struct Window {
    messages: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Window {
    /// Keeps a message, and forgets as many old ones as it takes.
    pub(super) fn push(&mut self, offset: u64, message: Bytes) {
        if self.messages.back().is_some_and(|(last, _)| *last >= offset) {
            // Another log under the same name.
            *self = Self::default();
        }
        self.bytes += message.len();
        self.messages.push_back((offset, message));
        while self.bytes > SIZE && self.messages.len() > 1 {
            self.bytes -= self.messages.pop_front().map_or(0, |(_, message)| message.len());
        }
    }

    /// The newest message and its offset.
    pub(super) fn last(&self) -> Option<(u64, Bytes)> {
        self.messages.back().cloned()
    }

    /// The message at this offset, if it is here.
    pub(super) fn get(&self, offset: u64) -> Option<&Bytes> {
        let place = self.messages.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(&self.messages[place].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_messages_make_room_and_another_log_begins_anew() {
        let mut window = Window::default();
        for offset in [5, 6, 8] {
            window.push(offset, Bytes::from(vec![0; SIZE / 2]));
        }
        assert!(window.get(5).is_none() && window.get(6).is_some() && window.get(8).is_some());
        assert!(window.get(7).is_none() && window.get(9).is_none() && window.get(0).is_none());
        window.push(0, Bytes::new());
        assert!(window.get(8).is_none() && window.get(0).is_some());
    }
}
