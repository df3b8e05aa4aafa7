//! How much of the log has to be read, and how much room is left before its beginning falls off its end.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::Timestamp;

use super::command::{Command, Piece};

/// What a message takes beside its body: the broker keeps properties, and writes notes of its own.
const BESIDE: u64 = 256;

/// After so many messages a copy is worth its while, whatever their size: each takes the broker a quarter
/// of a millisecond or so to hand out, and whoever connects has to read them all.
const MANY: u64 = 5_000;

/// And a copy may take so many bytes for each message.
const WORTH: u64 = 4 * 1024;

/// A copy of which nothing is heard for so long is given up by whoever wrote it.
const SILENCE: Duration = Duration::from_secs(15);

/// Bytes of the log, as they are read. Everything that lives stands after the beginning of the last
/// whole copy.
///
/// With `size` bytes that the broker keeps: a copy begins when an eighth has been written beside the last
/// one, or many messages, if that is much in relation to the jobs there are and to what a copy takes; and
/// calls wait at a quarter. A copy of a fifth is too large, but the next may take what was written since
/// on top of that. In the worst case these are nine tenths, and the broker cuts off a sixteenth at a time.
#[derive(Debug)]
pub(super) struct Room {
    size: u64,
    read: u64,
    messages: u64,
    /// The offset at which the last whole copy began, or the log.
    since: Option<u64>,
    /// Bytes and messages before that.
    covered: u64,
    covered_messages: u64,
    /// Bytes and jobs of the last whole copy.
    copy: u64,
    jobs: usize,
    /// Copies under way, by the offset at which they began.
    begun: HashMap<u64, Begun>,
}

/// A copy under way.
#[derive(Debug)]
struct Begun {
    at: u64,
    at_message: u64,
    bytes: u64,
    jobs: usize,
    heard_of: Timestamp,
}

impl Room {
    /// Of a log that was not looked at yet.
    pub(super) fn unread(size: u64) -> Self {
        Self {
            size,
            read: 0,
            messages: 0,
            since: None,
            covered: 0,
            covered_messages: 0,
            copy: 0,
            jobs: 0,
            begun: HashMap::new(),
        }
    }

    /// Of a log that is read from this offset on.
    pub(super) fn new(size: u64, first: u64) -> Self {
        Self { since: (first == 0).then_some(0), ..Self::unread(size) }
    }

    /// From where on the log has to be read to know all that lives; `None` while that is not known.
    pub(super) fn since(&self) -> Option<u64> {
        self.since
    }

    /// Takes a message into account.
    pub(super) fn read(&mut self, bytes: u64) {
        self.read += bytes + BESIDE;
        self.messages += 1;
    }

    /// Takes an entry of a message into account, that was read at this time.
    pub(super) fn note(&mut self, offset: u64, command: &Command, weight: u64, now: Timestamp) {
        let Command::Copy(piece) = command else { return };
        match piece {
            Piece::Begin => {
                self.begun.retain(|_, begun| begun.heard_of + SILENCE > now);
                if !self.begun.is_empty() {
                    // Whoever wrote this one was a moment late, and finds that out.
                    return;
                }
                let begun = Begun {
                    at: self.read,
                    at_message: self.messages,
                    bytes: 0,
                    jobs: 0,
                    heard_of: now,
                };
                self.begun.insert(offset, begun);
            }
            Piece::Frame { begin, .. } | Piece::Jobs(begin, _) => {
                if let Some(begun) = self.begun.get_mut(begin) {
                    begun.bytes += weight;
                    if let Piece::Jobs(_, jobs) = piece {
                        begun.jobs += jobs.len();
                    }
                    begun.heard_of = now;
                }
            }
            Piece::End { begin, jobs } => {
                if let Some(begun) = self.begun.remove(begin)
                    && begun.at >= self.covered
                    && begun.jobs as u64 >= *jobs
                {
                    self.since = Some(*begin);
                    self.covered = begun.at;
                    self.covered_messages = begun.at_message;
                    self.copy = begun.bytes;
                    self.jobs = begun.jobs;
                }
            }
        }
    }

    /// Whether a copy was begun at this offset, and nobody was at one then.
    pub(super) fn is_begun(&self, offset: u64) -> bool {
        self.begun.contains_key(&offset)
    }

    /// Whether it is time for a copy of so many jobs, and nobody is writing one.
    pub(super) fn wants_copy(&self, jobs: usize, now: Timestamp) -> bool {
        let is_silent = |begun: &Begun| begun.heard_of + SILENCE <= now;
        let many = MANY.max(jobs as u64 / 2).max(self.copy / WORTH);
        let is_long = self.messages - self.covered_messages >= many;
        (is_long || self.written() >= self.size / 8) && self.begun.values().all(is_silent)
    }

    /// Whether calls have to wait for a copy.
    pub(super) fn is_scarce(&self) -> bool {
        self.written() >= self.size / 4
    }

    /// Whether what lives takes so much that nothing should be added.
    pub(super) fn is_full(&self) -> bool {
        self.copy >= self.size / 5
    }

    /// Whether so many fewer jobs live now that another copy would be much smaller.
    pub(super) fn has_shrunk_to(&self, jobs: usize, now: Timestamp) -> bool {
        let is_silent = |begun: &Begun| begun.heard_of + SILENCE <= now;
        jobs * 4 <= self.jobs * 3 && self.begun.values().all(is_silent)
    }

    /// Bytes since the beginning of the last whole copy, but for that copy itself.
    fn written(&self) -> u64 {
        (self.read - self.covered).saturating_sub(self.copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    fn room() -> Room {
        Room::new(800 * BESIDE, 0)
    }

    fn piece(room: &mut Room, begin: u64, bytes: u64, now: Timestamp) {
        room.read(bytes - BESIDE);
        room.note(0, &Command::Copy(Piece::Jobs(begin, Vec::new())), bytes, now);
    }

    #[test]
    fn a_copy_begins_at_an_eighth_and_calls_wait_at_a_quarter() {
        let mut room = room();
        (0..99).for_each(|_| room.read(0));
        assert!(!room.wants_copy(0, NOW));
        room.read(0);
        assert!(room.wants_copy(0, NOW) && !room.is_scarce());
        room.note(7, &Command::Copy(Piece::Begin), 0, NOW);
        assert!(!room.wants_copy(0, NOW), "one is under way");
        room.note(8, &Command::Copy(Piece::Begin), 0, NOW);
        assert!(room.is_begun(7) && !room.is_begun(8), "another came a moment later");
        (0..100).for_each(|_| room.read(0));
        assert!(room.is_scarce());
        piece(&mut room, 7, 40 * BESIDE, NOW + SILENCE);
        assert!(!room.wants_copy(0, NOW + SILENCE), "it was heard of again");
        assert!(room.wants_copy(0, NOW + SILENCE * 2), "whoever wrote it seems to have died");
        room.note(8, &Command::Copy(Piece::End { begin: 6, jobs: 0 }), 0, NOW);
        assert!(room.is_scarce(), "that was the end of another");
        room.note(9, &Command::Copy(Piece::End { begin: 7, jobs: 0 }), 0, NOW);
        assert!(!room.is_scarce() && !room.is_full());
        assert!(room.wants_copy(0, NOW), "an eighth was written meanwhile");
    }

    #[test]
    fn a_copy_counts_neither_as_written_nor_for_the_next() {
        let mut room = room();
        for round in 0..3 {
            room.note(round, &Command::Copy(Piece::Begin), 0, NOW);
            piece(&mut room, round, 159 * BESIDE, NOW);
            room.note(99, &Command::Copy(Piece::End { begin: round, jobs: 0 }), 0, NOW);
            assert!(!room.wants_copy(0, NOW) && !room.is_scarce() && !room.is_full());
        }
        room.note(3, &Command::Copy(Piece::Begin), 0, NOW);
        piece(&mut room, 3, 160 * BESIDE, NOW);
        assert!(!room.is_full());
        room.note(4, &Command::Copy(Piece::End { begin: 3, jobs: 0 }), 0, NOW);
        assert!(room.is_full());
    }

    #[test]
    fn a_copy_begins_after_many_messages_and_tells_where_to_begin() {
        let mut room = Room::new(u64::MAX, 0);
        assert_eq!(room.since(), Some(0), "all of the log");
        (1..MANY).for_each(|_| room.read(0));
        assert!(!room.wants_copy(0, NOW));
        room.read(0);
        let jobs = usize::try_from(MANY).unwrap() * 2;
        assert!(
            room.wants_copy(jobs, NOW) && !room.wants_copy(jobs + 2, NOW),
            "not for so many jobs"
        );
        room.note(7, &Command::Copy(Piece::Begin), 0, NOW);
        (0..10).for_each(|_| room.read(0));
        assert_eq!(room.since(), Some(0), "it is not whole");
        room.note(9, &Command::Copy(Piece::End { begin: 7, jobs: 0 }), 0, NOW);
        assert_eq!(room.since(), Some(7));
        assert!(!room.wants_copy(0, NOW));
        (10..MANY).for_each(|_| room.read(0));
        assert!(room.wants_copy(0, NOW), "those beside the copy count");
        assert_eq!(Room::new(0, 5).since(), None, "there is a beginning that was not read");
    }

    #[test]
    fn a_copy_has_to_be_whole_and_worth_what_it_takes() {
        let mut room = Room::new(u64::MAX, 0);
        for (begin, jobs) in [(3, 1), (5, 0)] {
            room.note(begin, &Command::Copy(Piece::Begin), 0, NOW);
            piece(&mut room, begin, 2 * MANY * WORTH, NOW);
            room.note(9, &Command::Copy(Piece::End { begin, jobs }), 0, NOW);
        }
        assert_eq!(room.since(), Some(5), "a job of the first is missing");
        // The copy itself was one.
        (2..2 * MANY).for_each(|_| room.read(0));
        assert!(!room.wants_copy(0, NOW));
        room.read(0);
        assert!(room.wants_copy(0, NOW));
    }
}
