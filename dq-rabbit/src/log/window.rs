//! The newest messages of the log, as they were read: payloads that are needed soon are here.

use std::collections::VecDeque;

use bytes::Bytes;

/// Bytes that are kept.
const SIZE: usize = 16 * 1024 * 1024;

/// Messages at offsets without gaps.
#[derive(Debug, Default)]
pub(super) struct Window {
    first: u64,
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Window {
    /// Keeps a message, and forgets as many old ones as it takes.
    pub(super) fn push(&mut self, offset: u64, message: Bytes) {
        if offset != self.first + self.messages.len() as u64 {
            *self = Self { first: offset, ..Self::default() };
        }
        self.bytes += message.len();
        self.messages.push_back(message);
        while self.bytes > SIZE && self.messages.len() > 1 {
            self.bytes -= self.messages.pop_front().map_or(0, |message| message.len());
            self.first += 1;
        }
    }

    /// The message at this offset, if it is here.
    pub(super) fn get(&self, offset: u64) -> Option<&Bytes> {
        let index = usize::try_from(offset.checked_sub(self.first)?).ok()?;
        self.messages.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_messages_make_room_and_gaps_start_anew() {
        let mut window = Window::default();
        for offset in 5..8 {
            window.push(offset, Bytes::from(vec![0; SIZE / 2]));
        }
        assert!(window.get(5).is_none() && window.get(6).is_some() && window.get(7).is_some());
        assert!(window.get(8).is_none() && window.get(0).is_none());
        window.push(20, Bytes::new());
        assert!(window.get(7).is_none() && window.get(20).is_some());
    }
}
