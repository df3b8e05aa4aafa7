//! Decides when to close the current generation, and how much may be appended before its snapshot
//! is complete.
//!
//! A wrong estimate costs disk space and no job: a generation is deleted only after a later one's
//! snapshot is complete.

use std::time::Duration;

use crate::log::wire::{Command, SnapshotEntry};

/// The broker stores this much for a message besides its body.
const MESSAGE_OVERHEAD: u64 = 256;

/// A starting process reads all messages of a generation, at a quarter of a millisecond each.
const MESSAGES_PER_GENERATION: u64 = 5_000;

/// So that a large snapshot is not written again after few messages: a generation has at least one
/// for this many snapshot bytes.
const SNAPSHOT_BYTES_PER_MESSAGE: u64 = 4 * 1024;

/// A snapshot without a new part for this long is abandoned.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(15);

/// Counts one generation's bytes and messages; the log should have `size` bytes.
///
/// - At 1/8, or after many messages relative to jobs and snapshot, the generation is closed.
/// - At 1/4, new jobs wait for the next generation. Neither counts snapshots.
/// - The log itself limits a snapshot to 1/5, see [`Replica`](crate::log::state::replica::Replica).
#[derive(Debug, Default)]
pub(in crate::log) struct Retention {
    pub(in crate::log) size: u64,
    /// With snapshots.
    bytes: u64,
    messages: u64,
    snapshot_bytes: u64,
    /// Its snapshot is complete, or it needs none.
    is_complete: bool,
    /// When this process began to read it.
    begun: Duration,
    /// The snapshot that counts. One that begins meanwhile is given up.
    current: Option<SnapshotProgress>,
}

#[derive(Debug, Clone, Copy)]
pub(in crate::log) enum SnapshotStep {
    Begin,
    Part { begin: u64 },
    End { begin: u64, parts: u32 },
}

impl SnapshotStep {
    pub(in crate::log) fn of(command: &Command) -> Option<Self> {
        let Command::Snapshot(entry) = command else { return None };
        Some(match *entry {
            SnapshotEntry::Begin => Self::Begin,
            SnapshotEntry::Part { begin, .. } => Self::Part { begin },
            SnapshotEntry::End { begin, parts } => Self::End { begin, parts },
        })
    }
}

#[derive(Debug)]
struct SnapshotProgress {
    begin: u64,
    parts: u32,
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
    /// Begins with a generation, which is complete if it begins empty.
    pub(in crate::log) fn new(size: u64, is_complete: bool, now: Duration) -> Self {
        Self { size, is_complete, begun: now, ..Self::default() }
    }

    pub(in crate::log) fn add_message(&mut self, bytes: u64) {
        self.bytes += bytes + MESSAGE_OVERHEAD;
        self.messages += 1;
    }

    pub(in crate::log) fn add_entry(&mut self, command: &Command) {
        self.snapshot_bytes += command.snapshot_bytes();
    }

    /// Observes a snapshot's entry, unless it was a duplicate or followed a gap. Processes may
    /// differ on whether a snapshot is abandoned. One that still waits may write another, which
    /// affects no job.
    pub(in crate::log) fn observe(&mut self, offset: u64, step: SnapshotStep, now: Duration) {
        match step {
            SnapshotStep::Begin => {
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
            SnapshotStep::End { begin, parts } => {
                if let Some(snapshot) = self.snapshot(begin) {
                    let is_whole = snapshot.parts == parts;
                    self.current = None;
                    self.is_complete |= is_whole;
                }
            }
        }
    }

    pub(in crate::log) fn complete(&mut self) {
        self.is_complete = true;
        self.current = None;
    }

    fn snapshot(&mut self, begin: u64) -> Option<&mut SnapshotProgress> {
        self.current.as_mut().filter(|snapshot| snapshot.begin == begin)
    }

    fn has_no_writer(&self, now: Duration) -> bool {
        self.current.as_ref().is_none_or(|snapshot| snapshot.is_abandoned(now))
    }

    /// Whether nothing needs earlier generations.
    pub(in crate::log) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether the snapshot that begins here counts. It does not if another one was in progress.
    pub(in crate::log) fn is_in_progress(&self, offset: u64) -> bool {
        self.current.as_ref().is_some_and(|snapshot| snapshot.begin == offset)
    }

    /// Whether no process writes the missing snapshot, although one had [`SNAPSHOT_TIMEOUT`] to
    /// begin.
    pub(in crate::log) fn needs_snapshot(&self, now: Duration) -> bool {
        !self.is_complete && self.begun + SNAPSHOT_TIMEOUT <= now && self.has_no_writer(now)
    }

    pub(in crate::log) fn needs_close(&self, jobs: usize) -> bool {
        // A close costs a snapshot of all jobs.
        let max_messages = MESSAGES_PER_GENERATION
            .max(jobs as u64 / 2)
            .max(self.snapshot_bytes / SNAPSHOT_BYTES_PER_MESSAGE);
        let is_long = self.messages >= max_messages;
        self.is_complete && (is_long || self.appended() >= self.size / 8)
    }

    pub(in crate::log) fn blocks_growth(&self) -> bool {
        self.appended() >= self.size / 4
    }

    /// The generation's bytes without snapshots.
    fn appended(&self) -> u64 {
        self.bytes.saturating_sub(self.snapshot_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// A generation that is closed after 100 messages with empty bodies.
    fn retention(is_complete: bool) -> Retention {
        Retention::new(800 * MESSAGE_OVERHEAD, is_complete, NOW)
    }

    fn begin(retention: &mut Retention, offset: u64, now: Duration) {
        retention.observe(offset, SnapshotStep::Begin, now);
    }

    fn part(retention: &mut Retention, begin: u64, bytes: u64, now: Duration) {
        retention.add_message(bytes - MESSAGE_OVERHEAD);
        retention.snapshot_bytes += bytes;
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
