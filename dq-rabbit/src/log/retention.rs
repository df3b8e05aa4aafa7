//! Retention: when a snapshot is due, and how much can be appended before the broker deletes live
//! data.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::Timestamp;

use super::wire::{Command, SnapshotPart};

/// Bytes that the broker stores beside the body of a message: its properties, and the stream's own
/// records.
const MESSAGE_OVERHEAD: u64 = 256;

/// Messages after which a snapshot is due, whatever their size: the broker needs about a quarter of
/// a millisecond to deliver each, and a process that starts has to read all of them.
const MESSAGES_PER_SNAPSHOT: u64 = 5_000;

/// A large snapshot is written less often: one message has to be read for each of this many bytes
/// of the last snapshot before the next one is due.
const SNAPSHOT_BYTES_PER_MESSAGE: u64 = 4 * 1024;

/// A snapshot without a new part for this long is taken to be abandoned by its writer.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(15);

/// Counts the bytes and messages of the log as they are read.
///
/// *Live data*, which a process needs to restore the state, begins with the last complete snapshot.
/// The broker must not delete it. Of the `size` bytes that the broker keeps:
///
/// - A snapshot is due once 1/8 was appended since the beginning of the last one. It is also due
///   after many messages, relative to the number of jobs and to the size of a snapshot.
/// - Appends wait for a snapshot at 1/4. Neither limit counts the last snapshot itself.
/// - From a snapshot of 1/5 on, `schedule` is refused.
///
/// In the worst case, live data takes 9/10: the last snapshot (nearly 1/5), what was appended since
/// (1/4), and the next snapshot, which contains both (9/20). The broker deletes segments of at most
/// 1/16.
#[derive(Debug)]
pub(super) struct Retention {
    /// Maximum size of the log, in bytes.
    size: u64,
    /// Bytes and messages read so far.
    bytes: u64,
    messages: u64,
    /// Offset of the beginning of the last complete snapshot, or of the log.
    replay_from: Option<u64>,
    /// Bytes and messages before that offset.
    covered_bytes: u64,
    covered_messages: u64,
    /// Bytes and jobs of the last complete snapshot.
    snapshot_bytes: u64,
    snapshot_jobs: usize,
    /// Incomplete snapshots, by the offsets of their beginnings.
    in_progress: HashMap<u64, SnapshotProgress>,
}

/// A snapshot that is not complete yet.
#[derive(Debug)]
struct SnapshotProgress {
    /// Bytes and messages of the log before its beginning.
    bytes_before: u64,
    messages_before: u64,
    /// Bytes and jobs in its parts so far.
    bytes: u64,
    jobs: usize,
    /// When the last part was read.
    last_part: Timestamp,
}

impl SnapshotProgress {
    fn is_abandoned(&self, now: Timestamp) -> bool {
        self.last_part + SNAPSHOT_TIMEOUT <= now
    }
}

impl Retention {
    /// For a log that has not been read yet.
    pub(super) fn unread(size: u64) -> Self {
        Self {
            size,
            bytes: 0,
            messages: 0,
            replay_from: None,
            covered_bytes: 0,
            covered_messages: 0,
            snapshot_bytes: 0,
            snapshot_jobs: 0,
            in_progress: HashMap::new(),
        }
    }

    /// For a log that is read from this offset on.
    pub(super) fn starting_at(size: u64, first: u64) -> Self {
        Self { replay_from: (first == 0).then_some(0), ..Self::unread(size) }
    }

    /// Offset from which the log has to be replayed to restore the state; `None` while unknown.
    pub(super) fn replay_from(&self) -> Option<u64> {
        self.replay_from
    }

    /// Counts a message.
    pub(super) fn add_message(&mut self, bytes: u64) {
        self.bytes += bytes + MESSAGE_OVERHEAD;
        self.messages += 1;
    }

    /// Observes an entry of the last message, read at this time: parts of snapshots are counted.
    pub(super) fn observe(&mut self, offset: u64, command: &Command, bytes: u64, now: Timestamp) {
        let Command::Snapshot(part) = command else { return };
        match part {
            SnapshotPart::Begin => {
                self.in_progress.retain(|_, snapshot| !snapshot.is_abandoned(now));
                // While another snapshot is in progress, the writer of this one gives it up: see
                // `is_in_progress`.
                if self.in_progress.is_empty() {
                    let snapshot = SnapshotProgress {
                        bytes_before: self.bytes,
                        messages_before: self.messages,
                        bytes: 0,
                        jobs: 0,
                        last_part: now,
                    };
                    self.in_progress.insert(offset, snapshot);
                }
            }
            SnapshotPart::Header { begin, .. } | SnapshotPart::Jobs(begin, _) => {
                if let Some(snapshot) = self.in_progress.get_mut(begin) {
                    snapshot.bytes += bytes;
                    if let SnapshotPart::Jobs(_, jobs) = part {
                        snapshot.jobs += jobs.len();
                    }
                    snapshot.last_part = now;
                }
            }
            SnapshotPart::End { begin, jobs } => {
                if let Some(snapshot) = self.in_progress.remove(begin)
                    && snapshot.bytes_before >= self.covered_bytes
                    && snapshot.jobs as u64 >= *jobs
                {
                    self.replay_from = Some(*begin);
                    self.covered_bytes = snapshot.bytes_before;
                    self.covered_messages = snapshot.messages_before;
                    self.snapshot_bytes = snapshot.bytes;
                    self.snapshot_jobs = snapshot.jobs;
                }
            }
        }
    }

    /// Whether a snapshot that began at this offset is in progress. `false` if another one was in
    /// progress when it began.
    pub(super) fn is_in_progress(&self, offset: u64) -> bool {
        self.in_progress.contains_key(&offset)
    }

    /// Whether a snapshot of this many jobs is due, and none is in progress.
    pub(super) fn needs_snapshot(&self, jobs: usize, now: Timestamp) -> bool {
        let max_messages = MESSAGES_PER_SNAPSHOT
            .max(jobs as u64 / 2)
            .max(self.snapshot_bytes / SNAPSHOT_BYTES_PER_MESSAGE);
        let is_long = self.messages - self.covered_messages >= max_messages;
        (is_long || self.appended() >= self.size / 8) && self.is_idle(now)
    }

    /// Whether appends have to wait for a snapshot.
    pub(super) fn blocks_appends(&self) -> bool {
        self.appended() >= self.size / 4
    }

    /// Whether the last snapshot was so large that no jobs should be added.
    pub(super) fn is_full(&self) -> bool {
        self.snapshot_bytes >= self.size / 5
    }

    /// Whether the number of jobs has dropped so far that another snapshot would be much smaller,
    /// and none is in progress.
    pub(super) fn has_shrunk_to(&self, jobs: usize, now: Timestamp) -> bool {
        jobs * 4 <= self.snapshot_jobs * 3 && self.is_idle(now)
    }

    /// Whether no snapshot is in progress, other than abandoned ones.
    fn is_idle(&self, now: Timestamp) -> bool {
        self.in_progress.values().all(|snapshot| snapshot.is_abandoned(now))
    }

    /// Bytes since the beginning of the last complete snapshot, without that snapshot.
    fn appended(&self) -> u64 {
        (self.bytes - self.covered_bytes).saturating_sub(self.snapshot_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::EPOCH;

    /// A log that holds 800 messages with empty bodies: a snapshot is due after 100 of them.
    fn retention() -> Retention {
        Retention::starting_at(800 * MESSAGE_OVERHEAD, 0)
    }

    fn begin(retention: &mut Retention, offset: u64) {
        retention.observe(offset, &Command::Snapshot(SnapshotPart::Begin), 0, NOW);
    }

    fn part(retention: &mut Retention, begin: u64, bytes: u64, now: Timestamp) {
        retention.add_message(bytes - MESSAGE_OVERHEAD);
        let part = Command::Snapshot(SnapshotPart::Jobs(begin, Vec::new()));
        retention.observe(0, &part, bytes, now);
    }

    fn end(retention: &mut Retention, begin: u64, jobs: u64) {
        let end = Command::Snapshot(SnapshotPart::End { begin, jobs });
        retention.observe(9, &end, 0, NOW);
    }

    #[test]
    fn a_snapshot_is_due_at_an_eighth_and_appends_wait_at_a_quarter() {
        let mut retention = retention();
        (0..99).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_snapshot(0, NOW));
        retention.add_message(0);
        assert!(retention.needs_snapshot(0, NOW) && !retention.blocks_appends());
        begin(&mut retention, 7);
        assert!(!retention.needs_snapshot(0, NOW), "one is in progress");
        begin(&mut retention, 8);
        assert!(
            retention.is_in_progress(7) && !retention.is_in_progress(8),
            "the second began while the first was in progress"
        );
        (0..100).for_each(|_| retention.add_message(0));
        assert!(retention.blocks_appends());
        part(&mut retention, 7, 40 * MESSAGE_OVERHEAD, NOW + SNAPSHOT_TIMEOUT);
        assert!(!retention.needs_snapshot(0, NOW + SNAPSHOT_TIMEOUT), "it has a new part");
        assert!(retention.needs_snapshot(0, NOW + SNAPSHOT_TIMEOUT * 2), "it is abandoned");
        end(&mut retention, 6, 0);
        assert!(retention.blocks_appends(), "that was the end of another snapshot");
        end(&mut retention, 7, 0);
        assert!(!retention.blocks_appends() && !retention.is_full());
        assert!(retention.needs_snapshot(0, NOW), "an eighth was appended meanwhile");
    }

    #[test]
    fn a_snapshot_counts_neither_as_appended_nor_for_the_next_snapshot() {
        let mut retention = retention();
        for round in 0..3 {
            begin(&mut retention, round);
            part(&mut retention, round, 159 * MESSAGE_OVERHEAD, NOW);
            end(&mut retention, round, 0);
            assert!(!retention.needs_snapshot(0, NOW));
            assert!(!retention.blocks_appends() && !retention.is_full());
        }
        begin(&mut retention, 3);
        part(&mut retention, 3, 160 * MESSAGE_OVERHEAD, NOW);
        assert!(!retention.is_full());
        end(&mut retention, 3, 0);
        assert!(retention.is_full());
    }

    #[test]
    fn a_snapshot_is_due_after_many_messages_and_moves_the_start_of_the_replay() {
        let mut retention = Retention::starting_at(u64::MAX, 0);
        assert_eq!(retention.replay_from(), Some(0), "all of the log");
        (1..MESSAGES_PER_SNAPSHOT).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_snapshot(0, NOW));
        retention.add_message(0);
        let jobs = usize::try_from(MESSAGES_PER_SNAPSHOT).unwrap() * 2;
        assert!(retention.needs_snapshot(jobs, NOW));
        assert!(!retention.needs_snapshot(jobs + 2, NOW), "not for more jobs");
        begin(&mut retention, 7);
        (0..10).for_each(|_| retention.add_message(0));
        assert_eq!(retention.replay_from(), Some(0), "the snapshot is incomplete");
        end(&mut retention, 7, 0);
        assert_eq!(retention.replay_from(), Some(7));
        assert!(!retention.needs_snapshot(0, NOW));
        (10..MESSAGES_PER_SNAPSHOT).for_each(|_| retention.add_message(0));
        assert!(retention.needs_snapshot(0, NOW), "messages between the parts count");
        assert_eq!(Retention::starting_at(0, 5).replay_from(), None, "the beginning is not read");
    }

    #[test]
    fn a_snapshot_counts_if_it_is_complete_and_its_size_delays_the_next() {
        let mut retention = Retention::starting_at(u64::MAX, 0);
        for (offset, jobs) in [(3, 1), (5, 0)] {
            begin(&mut retention, offset);
            let bytes = 2 * MESSAGES_PER_SNAPSHOT * SNAPSHOT_BYTES_PER_MESSAGE;
            part(&mut retention, offset, bytes, NOW);
            end(&mut retention, offset, jobs);
        }
        assert_eq!(retention.replay_from(), Some(5), "a job of the first is missing");
        // One message was the snapshot itself.
        (2..2 * MESSAGES_PER_SNAPSHOT).for_each(|_| retention.add_message(0));
        assert!(!retention.needs_snapshot(0, NOW));
        retention.add_message(0);
        assert!(retention.needs_snapshot(0, NOW));
    }
}
