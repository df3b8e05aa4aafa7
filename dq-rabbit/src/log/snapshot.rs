//! Snapshots of the state in the log, so that the broker can delete the messages before them.
//!
//! A snapshot is a [`SnapshotPart::Begin`], a header, the jobs in several parts, and a
//! [`SnapshotPart::End`]. It holds the state right after its `Begin`; entries of other commands go
//! on between its parts. A process that starts to read in the middle of the log collects parts
//! until a snapshot is complete, restores its replica from it, and replays the entries since its
//! `Begin`.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dq_core::machine::{JobPlacement, JobSnapshot, MachineSnapshot};
use dq_core::{FencingToken, Headers, Job, JobId};

use super::position::LogPosition;
use super::producers::Producers;
use super::wire::{self, Command, Entry, SnapshotJob, SnapshotJobState, SnapshotPart};

/// Maximum number of jobs in one part.
const PART_JOBS: usize = 500;
/// A part is complete once it has this many bytes, approximately.
const PART_BYTES: usize = 256 * 1024;

/// Collects snapshots from the log until one is complete.
///
/// Snapshots are identified by the offsets of their beginnings. Any part may be read twice, if its
/// writer sent it again. A repeated `Begin` opens a snapshot that never completes: the later parts
/// name the offset of the `Begin` that was applied.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCollector {
    snapshots: HashMap<u64, CollectedSnapshot>,
}

/// A snapshot as far as it has been read.
#[derive(Debug, Default)]
pub(crate) struct CollectedSnapshot {
    /// The jobs have [`LogPosition`]s in place of their payloads.
    pub(crate) machine: MachineSnapshot,
    pub(crate) log_id: u64,
    pub(crate) producers: Producers,
    /// The entries from the beginning of the snapshot on, without payloads: offset of the message,
    /// index in the message, entry.
    pub(crate) later_entries: Vec<(u64, u32, Entry)>,
    /// Ids of the jobs in `machine`.
    job_ids: HashSet<JobId>,
    has_header: bool,
    is_complete: bool,
}

impl SnapshotCollector {
    /// Adds an entry to the later entries of all snapshots that began before it, and, if it is a
    /// part of a snapshot, its contents to that snapshot.
    pub(crate) fn add(&mut self, offset: u64, index: u32, mut entry: Entry) {
        entry.command.drop_payloads();
        for snapshot in self.snapshots.values_mut() {
            snapshot.later_entries.push((offset, index, entry.clone()));
        }
        let Command::Snapshot(part) = entry.command else { return };
        match part {
            SnapshotPart::Begin => {
                // The producers in the header include the sequence number of this entry, so its
                // replay is ignored as a duplicate. It is kept only so that its producer gets a
                // reply, if it still waits for one.
                let later_entries =
                    vec![(offset, index, Entry { command: Command::Barrier, ..entry })];
                self.snapshots.insert(
                    offset,
                    CollectedSnapshot { later_entries, ..CollectedSnapshot::default() },
                );
            }
            SnapshotPart::Header { begin, log_id, last_seq, last_token, producers, queues } => {
                let Some(snapshot) = self.snapshots.get_mut(&begin) else { return };
                snapshot.has_header = true;
                snapshot.log_id = log_id;
                snapshot.producers = Producers::from_wire(producers);
                snapshot.machine.last_seq = last_seq;
                snapshot.machine.last_token = last_token;
                let queue = |(name, paused, totals)| (name, paused, from_wire_totals(totals));
                snapshot.machine.queues = queues.into_iter().map(queue).collect();
            }
            SnapshotPart::Jobs(begin, jobs) => {
                let Some(snapshot) = self.snapshots.get_mut(&begin) else { return };
                for (job_index, job) in jobs.into_iter().enumerate() {
                    let position = LogPosition { offset, entry: index, job: job_index as u32 };
                    if snapshot.job_ids.insert(job.job.id) {
                        snapshot.machine.jobs.push(from_wire_job(job, position));
                    }
                }
            }
            SnapshotPart::End { begin, jobs } => {
                // A broker that lost its newest messages may have lost parts that their writer has
                // read back.
                if let Some(snapshot) = self.snapshots.get_mut(&begin) {
                    snapshot.is_complete =
                        snapshot.has_header && snapshot.job_ids.len() as u64 == jobs;
                }
            }
        }
    }

    /// Removes and returns a complete snapshot, if there is one.
    pub(crate) fn take_complete(&mut self) -> Option<CollectedSnapshot> {
        let begin = *self.snapshots.iter().find(|(_, snapshot)| snapshot.is_complete)?.0;
        self.snapshots.remove(&begin)
    }
}

/// Splits the jobs of a snapshot into parts. Jobs without an entry in `payloads` are left out: they
/// ended while the payloads were being read.
pub(crate) fn job_parts(
    begin: u64,
    jobs: Vec<JobSnapshot>,
    mut payloads: HashMap<JobId, (Bytes, Headers)>,
) -> Vec<SnapshotPart> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut bytes = 0;
    for JobSnapshot { mut job, seq, placement } in jobs {
        let Some((payload, headers)) = payloads.remove(&job.id) else { continue };
        job.payload = payload;
        job.headers = headers;
        let new_job = wire::NewJob::from(&job);
        bytes += new_job.approx_size();
        part.push(SnapshotJob {
            job: new_job,
            created: job.created,
            counts: [job.attempts, job.deliveries, job.losses],
            seq,
            state: match placement {
                JobPlacement::Waiting => SnapshotJobState::Waiting,
                JobPlacement::Leased { token, until } => SnapshotJobState::Leased(token.0, until),
                JobPlacement::Dead(reason, since) => SnapshotJobState::Dead(*reason, since),
            },
        });
        if part.len() >= PART_JOBS || bytes >= PART_BYTES {
            parts.push(SnapshotPart::Jobs(begin, std::mem::take(&mut part)));
            bytes = 0;
        }
    }
    if !part.is_empty() {
        parts.push(SnapshotPart::Jobs(begin, part));
    }
    parts
}

fn from_wire_job(snapshot_job: SnapshotJob, position: LogPosition) -> JobSnapshot {
    let SnapshotJob { job, created, counts: [attempts, deliveries, losses], seq, state } =
        snapshot_job;
    let new = job.with_payload(position.to_bytes());
    let job = Job {
        id: new.id,
        queue: new.queue,
        key: new.key,
        due: new.due.resolve(created),
        created,
        payload: new.payload,
        headers: new.headers,
        max_attempts: new.max_attempts,
        attempts,
        deliveries,
        losses,
    };
    let placement = match state {
        SnapshotJobState::Waiting => JobPlacement::Waiting,
        SnapshotJobState::Leased(token, until) => {
            JobPlacement::Leased { token: FencingToken(token), until }
        }
        SnapshotJobState::Dead(reason, since) => JobPlacement::Dead(Box::new(reason), since),
    };
    JobSnapshot { job, seq, placement }
}

/// The totals of a queue in the order of [`wire::Totals`].
pub(crate) fn to_wire_totals(totals: &dq_core::Totals) -> wire::Totals {
    let dq_core::Totals { created, done, skipped, cancelled, replaced, removed } = *totals;
    [created, done, skipped, cancelled, replaced, removed]
}

fn from_wire_totals(totals: wire::Totals) -> dq_core::Totals {
    let [created, done, skipped, cancelled, replaced, removed] = totals;
    dq_core::Totals { created, done, skipped, cancelled, replaced, removed }
}
