//! How much room is left before the beginning of the log falls off its end.

use std::collections::HashMap;

use super::command::{Command, Piece};

/// Bytes of the log, as they are read. Everything that lives stands after the beginning of the last
/// whole copy.
///
/// With `size` bytes that the broker keeps: a copy begins when a quarter of that has been written since
/// the last one began, calls wait when it is a half, and a copy may itself take a third.
#[derive(Debug)]
pub(super) struct Room {
    size: u64,
    read: u64,
    /// Where the last whole copy began.
    covered: u64,
    /// Copies under way: where they began, and their bytes so far.
    begun: HashMap<u64, (u64, u64)>,
    /// Bytes of the last whole copy.
    copy: u64,
}

impl Room {
    pub(super) fn new(size: u64) -> Self {
        Self { size, read: 0, covered: 0, begun: HashMap::new(), copy: 0 }
    }

    /// Takes a message into account.
    pub(super) fn read(&mut self, bytes: u64) {
        self.read += bytes;
    }

    /// Takes an entry of a message into account.
    pub(super) fn note(&mut self, offset: u64, command: &Command, weight: u64) {
        let Command::Copy(piece) = command else { return };
        match piece {
            Piece::Begin => {
                // Those that were never ended.
                let old = self.read.saturating_sub(self.size);
                self.begun.retain(|_, (at, _)| *at >= old);
                self.begun.insert(offset, (self.read, 0));
            }
            Piece::Frame { begin, .. } | Piece::Jobs(begin, _) => {
                if let Some((_, bytes)) = self.begun.get_mut(begin) {
                    *bytes += weight;
                }
            }
            Piece::End(begin) => {
                if let Some((at, bytes)) = self.begun.remove(begin) {
                    self.covered = self.covered.max(at);
                    self.copy = bytes;
                }
            }
        }
    }

    /// Whether it is time for a copy, and nobody has begun one lately.
    pub(super) fn wants_copy(&self) -> bool {
        let lately = self.read.saturating_sub(self.size / 8);
        self.since() >= self.size / 4 && self.begun.values().all(|(at, _)| *at < lately)
    }

    /// Whether calls have to wait for a copy.
    pub(super) fn is_scarce(&self) -> bool {
        self.since() >= self.size / 2
    }

    /// Whether what lives takes so much that nothing should be added.
    pub(super) fn is_full(&self) -> bool {
        self.copy >= self.size / 3
    }

    fn since(&self) -> u64 {
        self.read - self.covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(begin: u64) -> Command {
        Command::Copy(Piece::End(begin))
    }

    #[test]
    fn copies_begin_at_a_quarter_and_calls_wait_at_a_half() {
        let mut room = Room::new(1_000);
        room.read(249);
        assert!(!room.wants_copy());
        room.read(1);
        assert!(room.wants_copy() && !room.is_scarce());
        room.note(7, &Command::Copy(Piece::Begin), 0);
        assert!(!room.wants_copy(), "one is under way");
        room.read(250);
        assert!(room.is_scarce());
        assert!(room.wants_copy(), "the first seems to have died");
        room.note(7, &Command::Copy(Piece::Jobs(7, Vec::new())), 40);
        room.note(7, &end(8), 0);
        assert!(room.is_scarce(), "another copy has ended");
        room.note(7, &end(7), 0);
        assert!(!room.is_scarce() && !room.is_full());
        assert!(room.wants_copy(), "it began a while ago");
    }

    #[test]
    fn a_copy_that_takes_a_third_is_too_large() {
        let mut room = Room::new(900);
        room.note(1, &Command::Copy(Piece::Begin), 0);
        room.note(2, &Command::Copy(Piece::Jobs(1, Vec::new())), 300);
        assert!(!room.is_full());
        room.note(3, &end(1), 0);
        assert!(room.is_full());
    }
}
