//! Retention: when the current generation of the log is to be closed, and how much may be appended to
//! it before its snapshot is complete.
//!
//! Sizes are a matter of disk space only. No generation has a limit, and one is deleted only after
//! the snapshot in a later one is complete, so a wrong estimate costs disk space and no job.

use std::time::Duration;

use super::wire::{Command, SnapshotEntry};

/// Bytes that the broker stores beside the body of a message: its properties, and the stream's own
/// records.
const MESSAGE_OVERHEAD: u64 = 256;

/// Messages after which a generation is closed, whatever their size: the broker needs about a quarter
/// of a millisecond to deliver each, and a process that starts has to read all of them.
const MESSAGES_PER_GENERATION: u64 = 5_000;

/// A generation is not closed for its number of messages before it has one for each this many bytes of
/// its snapshot: otherwise a large snapshot would be written again after few changes.
const SNAPSHOT_BYTES_PER_MESSAGE: u64 = 4 * 1024;

/// A snapshot without a new part for this long is taken to be abandoned by its writer.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(15);

/// Counts the bytes and messages of one generation as they are read.
///
/// Of the `size` bytes that the log should have:
///
/// - A generation is closed once 1/8 was appended to it. It is also closed after many messages,
///   relative to the number of jobs and to the size of its snapshot.
/// - New jobs wait at 1/4, until the log goes on in the next generation. Neither limit counts
///   snapshots.
/// - What a snapshot would take is limited to 1/5 by the log itself: see
///   [`Replica`](super::replica::Replica).
#[derive(Debug)]
pub(super) struct Retention {
    size: u64,
    /// Bytes and messages read so far.
    bytes: u64,
    messages: u64,
    /// Bytes of all entries of snapshots.
    snapshot_bytes: u64,
    /// Whether the snapshot at its beginning is complete, or it needs none.
    is_complete: bool,
    /// The elapsed time at which this process began to read the generation. Its snapshot is
    /// expected from the process that has closed the one before.
    begun: Duration,
    /// The snapshot that counts, until it is complete. It may have been abandoned; then the next one
    /// takes its place. One that begins while this one is in progress is given up by its writer, and
    /// not counted.
    current: Option<SnapshotProgress>,
}

/// An entry of a snapshot, without what it holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum SnapshotStep {
    Begin,
    /// Of the snapshot that began at this offset.
    Part {
        begin: u64,
    },
    /// With the number of parts.
    End {
        begin: u64,
        parts: u32,
    },
}

impl SnapshotStep {
    /// `None` for an entry of another kind.
    pub(super) fn of(command: &Command) -> Option<Self> {
        let Command::Snapshot(entry) = command else { return None };
        Some(match *entry {
            SnapshotEntry::Begin => Self::Begin,
            SnapshotEntry::Part { begin, .. } => Self::Part { begin },
            SnapshotEntry::End { begin, parts } => Self::End { begin, parts },
        })
    }
}

/// A snapshot that is not complete yet.
#[derive(Debug)]
struct SnapshotProgress {
    /// The offset of its beginning.
    begin: u64,
    /// Number of parts so far.
    parts: u32,
    /// When the last part was read.
    last_part: Duration,
}

impl SnapshotProgress {
    fn new(begin: u64, now: Duration) -> Self {
        Self { begin, parts: 0, last_part: now }
    }

    fn is_abandoned(&self, now: Duration) -> bool {
        self.last_part + SNAPSHOT_TIMEOUT <= now
    }
}

impl Retention {
    /// For a generation that is read from its beginning, from now on. `is_complete` if it begins
    /// empty.
    pub(super) fn new(size: u64, is_complete: bool, now: Duration) -> Self {
        Self {
            size,
            bytes: 0,
            messages: 0,
            snapshot_bytes: 0,
            is_complete,
            begun: now,
            current: None,
        }
    }

    /// The log should have this size from now on.
    pub(super) fn resize(&mut self, size: u64) {
        self.size = size;
    }

    /// Counts a message.
    pub(super) fn add_message(&mut self, bytes: u64) {
        self.bytes += bytes + MESSAGE_OVERHEAD;
        self.messages += 1;
    }

    /// Counts an entry of the last message if it is one of a snapshot.
    pub(super) fn add_entry(&mut self, command: &Command, bytes: u64) {
        if matches!(command, Command::Snapshot(_)) {
            self.snapshot_bytes += bytes;
        }
    }

    /// Observes an entry of a snapshot, unless the entry was a duplicate or followed a gap.
    ///
    /// `now` is elapsed time of this process, so processes may differ on whether a snapshot is
    /// abandoned. A process that takes it to be in progress does not count the next one, and may write
    /// another. Jobs are not affected.
    pub(super) fn observe(&mut self, offset: u64, step: SnapshotStep, now: Duration) {
        match step {
            SnapshotStep::Begin => {
                // While another snapshot is in progress or complete, the writer of this one gives it
                // up: see `is_in_progress`.
                if !self.is_complete && self.has_no_writer(now) {
                    self.current = Some(SnapshotProgress::new(offset, now));
                }
            }
            SnapshotStep::Part { begin } => {
                if let Some(snapshot) = self.snapshot(begin) {
                    snapshot.parts += 1;
                    snapshot.last_part = now;
                }
            }
            // It counts if all of its parts were read: a replica can be restored from it.
            SnapshotStep::End { begin, parts } => {
                if let Some(snapshot) = self.snapshot(begin) {
                    let is_whole = snapshot.parts == parts;
                    self.current = None;
                    self.is_complete |= is_whole;
                }
            }
        }
    }

    /// A replica was restored from the snapshot of this generation, so it is complete.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
        self.current = None;
    }

    /// The snapshot that began at this offset, if it is the one that counts.
    fn snapshot(&mut self, begin: u64) -> Option<&mut SnapshotProgress> {
        self.current.as_mut().filter(|snapshot| snapshot.begin == begin)
    }

    /// Whether nobody writes a snapshot.
    fn has_no_writer(&self, now: Duration) -> bool {
        self.current.as_ref().is_none_or(|snapshot| snapshot.is_abandoned(now))
    }

    /// Whether the state at the beginning of this generation is in it, so that nothing needs the
    /// generations before.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether a snapshot that began at this offset is in progress. `false` if another one was in
    /// progress when it began.
    pub(super) fn is_in_progress(&self, offset: u64) -> bool {
        self.current.as_ref().is_some_and(|snapshot| snapshot.begin == offset)
    }

    /// Whether the generation has no snapshot, and no process writes one, although the one that should
    /// has had [`SNAPSHOT_TIMEOUT`] to begin.
    pub(super) fn needs_snapshot(&self, now: Duration) -> bool {
        !self.is_complete && self.begun + SNAPSHOT_TIMEOUT <= now && self.has_no_writer(now)
    }

    /// Whether the generation, of this many jobs, is to be closed.
    pub(super) fn needs_close(&self, jobs: usize) -> bool {
        // To close costs a snapshot of all jobs, so with many jobs it pays after many messages only.
        let max_messages = MESSAGES_PER_GENERATION
            .max(jobs as u64 / 2)
            .max(self.snapshot_bytes / SNAPSHOT_BYTES_PER_MESSAGE);
        let is_long = self.messages >= max_messages;
        self.is_complete && (is_long || self.appended() >= self.size / 8)
    }

    /// Whether new jobs have to wait for the next generation.
    pub(super) fn blocks_growth(&self) -> bool {
        self.appended() >= self.size / 4
    }

    /// Bytes in this generation, without snapshots.
    fn appended(&self) -> u64 {
        self.bytes.saturating_sub(self.snapshot_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// A generation of a log of 800 messages with empty bodies: it is closed after 100 of them.
    fn retention(is_complete: bool) -> Retention {
        Retention::new(800 * MESSAGE_OVERHEAD, is_complete, NOW)
    }

    fn begin(retention: &mut Retention, offset: u64, now: Duration) {
        retention.observe(offset, SnapshotStep::Begin, now);
    }

    fn part(retention: &mut Retention, begin: u64, bytes: u64, now: Duration) {
        retention.add_message(bytes - MESSAGE_OVERHEAD);
        retention.add_entry(&Command::Snapshot(SnapshotEntry::Begin), bytes);
        retention.observe(0, SnapshotStep::Part { begin }, now);
    }

    fn end(retention: &mut Retention, begin: u64, parts: u32) {
        retention.observe(9, SnapshotStep::End { begin, parts }, NOW);
    }

    #[test]
    fn a_generation_is_closed_at_an_eighth_and_new_jobs_wait_at_a_quarter() {
        let mut retention = retention(true);
        (0..99).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_close(0));
        retention.add_message(0);
        assert!(retention.needs_close(0) && !retention.blocks_growth());
        (0..100).for_each(|_| retention.add_message(0));
        assert!(retention.blocks_growth());
    }

    #[test]
    fn a_snapshot_is_due_when_nobody_writes_one() {
        let mut retention = retention(false);
        (0..200).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_snapshot(NOW), "the process that closes writes it");
        let later = NOW + SNAPSHOT_TIMEOUT;
        assert!(retention.needs_snapshot(later));
        begin(&mut retention, 7, later);
        begin(&mut retention, 8, later);
        assert!(
            retention.is_in_progress(7) && !retention.is_in_progress(8),
            "the second began while the first was in progress"
        );
        assert!(!retention.needs_snapshot(later));
        part(&mut retention, 7, 40 * MESSAGE_OVERHEAD, later + SNAPSHOT_TIMEOUT / 2);
        assert!(!retention.needs_snapshot(later + SNAPSHOT_TIMEOUT), "it has a new part");
        assert!(retention.needs_snapshot(later + SNAPSHOT_TIMEOUT * 2), "it is abandoned");
        end(&mut retention, 6, 1);
        assert!(!retention.is_complete(), "that was the end of another snapshot");
        assert!(!retention.needs_close(0), "the generation before it is still needed");
        end(&mut retention, 7, 1);
        assert!(retention.is_complete() && retention.needs_close(0));
        assert!(!retention.needs_snapshot(later + SNAPSHOT_TIMEOUT * 9));
        begin(&mut retention, 900, later);
        assert!(!retention.is_in_progress(900), "one is enough");
    }

    #[test]
    fn a_snapshot_does_not_count_as_appended() {
        let mut retention = retention(false);
        begin(&mut retention, 7, NOW);
        part(&mut retention, 7, 159 * MESSAGE_OVERHEAD, NOW);
        end(&mut retention, 7, 1);
        assert!(!retention.needs_close(0) && !retention.blocks_growth());
    }

    #[test]
    fn a_generation_is_closed_after_many_messages() {
        let mut retention = Retention::new(u64::MAX, true, NOW);
        (1..MESSAGES_PER_GENERATION).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_close(0));
        retention.add_message(0);
        let jobs = usize::try_from(MESSAGES_PER_GENERATION).unwrap() * 2;
        assert!(retention.needs_close(jobs));
        assert!(!retention.needs_close(jobs + 2), "not for more jobs");
    }

    #[test]
    fn a_snapshot_counts_if_it_is_complete_and_its_size_delays_the_close() {
        let mut retention = Retention::new(u64::MAX, false, NOW);
        for (offset, parts) in [(3, 2), (5, 1)] {
            begin(&mut retention, offset, NOW);
            let bytes = MESSAGES_PER_GENERATION * SNAPSHOT_BYTES_PER_MESSAGE;
            part(&mut retention, offset, bytes, NOW);
            end(&mut retention, offset, parts);
            assert_eq!(retention.is_complete(), offset == 5, "a part of the first is missing");
        }
        // Two messages were the snapshots.
        (3..2 * MESSAGES_PER_GENERATION).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_close(0));
        retention.add_message(0);
        assert!(retention.needs_close(0));
    }
}
