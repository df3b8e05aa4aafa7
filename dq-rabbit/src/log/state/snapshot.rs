//! Snapshots, so that earlier generations can be deleted.
//!
//! A snapshot is a [`SnapshotEntry::Begin`], numbered parts, and a [`SnapshotEntry::End`], with
//! other entries between them. It holds the state right after its `Begin`. A starting process
//! collects parts until a snapshot is complete, restores its replica, and applies the entries since
//! the `Begin`.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dq_core::machine::{JobPlacement, JobSnapshot, MachineSnapshot};
use dq_core::{Announced, FencingToken, Headers, HistoryLimits, JobId, Receipt};
use serde::Serialize;

use super::producers::Producers;
use super::stored::{LogPosition, PayloadRef, StoredPayload};
use crate::chunks::chunks;
use crate::log::wire::{
    self, Command, Entry, SnapshotEntry, SnapshotHeader, SnapshotJob, SnapshotJobState,
    SnapshotPart, StandingLease,
};

const PART_ITEMS: usize = 500;
/// A larger item is a part of its own.
const PART_BYTES: u64 = 256 * 1024;

/// Collects snapshots, by the offsets where they begin, until one is complete. Parts may come
/// twice. A repeated `Begin` opens a snapshot that never completes, because parts name the first
/// one.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCollector {
    snapshots: HashMap<u64, CollectedSnapshot>,
}

#[derive(Debug, Default)]
pub(crate) struct CollectedSnapshot {
    pub(crate) machine: MachineSnapshot<StoredPayload>,
    pub(crate) history_limits: HistoryLimits,
    pub(crate) capacity: Option<u64>,
    pub(crate) log_id: u64,
    pub(crate) producers: Producers,
    /// Without payloads: offset, index in the message, entry.
    pub(crate) later_entries: Vec<(u64, u32, Entry)>,
    pub(crate) leases: Vec<StandingLease>,
    parts: HashSet<u32>,
    is_complete: bool,
}

impl SnapshotCollector {
    pub(crate) fn add(&mut self, offset: u64, index: u32, mut entry: Entry) {
        entry.command.drop_payloads();
        for snapshot in self.snapshots.values_mut() {
            snapshot.later_entries.push((offset, index, entry.clone()));
        }
        let Command::Snapshot(snapshot_entry) = entry.command else { return };
        match snapshot_entry {
            SnapshotEntry::Begin => {
                // The header's producers include this entry, so it is a duplicate. It is kept
                // because its producer may wait for a reply.
                let begin = (offset, index, Entry { command: Command::Barrier, ..entry });
                let snapshot =
                    CollectedSnapshot { later_entries: vec![begin], ..Default::default() };
                self.snapshots.insert(offset, snapshot);
            }
            SnapshotEntry::Part { begin, number, part } => {
                if let Some(snapshot) = self.snapshots.get_mut(&begin)
                    && snapshot.parts.insert(number)
                {
                    snapshot.add(offset, index, part);
                }
            }
            SnapshotEntry::End { begin, parts } => {
                // A broker that lost its newest messages may have lost parts.
                if let Some(snapshot) = self.snapshots.get_mut(&begin) {
                    snapshot.is_complete = snapshot.parts.len() == parts as usize;
                }
            }
        }
    }

    pub(crate) fn take_complete(&mut self) -> Option<CollectedSnapshot> {
        let begin = *self.snapshots.iter().find(|(_, snapshot)| snapshot.is_complete)?.0;
        self.snapshots.remove(&begin)
    }
}

impl CollectedSnapshot {
    fn add(&mut self, offset: u64, index: u32, part: SnapshotPart) {
        match part {
            SnapshotPart::Header(header) => self.add_header(*header),
            SnapshotPart::Jobs(jobs) => {
                let positions = (0..).map(|job| LogPosition { offset, entry: index, job });
                let jobs = jobs.into_iter().zip(positions);
                self.machine.jobs.extend(jobs.map(|(job, at)| from_wire_job(job, at)));
            }
            SnapshotPart::Ended(jobs) => {
                self.machine.ended.extend(jobs.into_iter().map(Into::into));
            }
            SnapshotPart::Pins(pins) => {
                let pin = |(id, due, until)| (Receipt { id, due }, until);
                self.machine.pins.extend(pins.into_iter().map(pin));
            }
            SnapshotPart::Runners(runners) => {
                let runner = |(name, info, at, until)| Announced::new(name, info, at, until);
                self.machine.runners.extend(runners.into_iter().map(runner));
            }
            SnapshotPart::Leases(leases) => self.leases.extend(leases),
            SnapshotPart::Gates(gates) => {
                self.machine.gates.extend(gates.into_iter().map(Into::into));
            }
        }
    }

    fn add_header(&mut self, header: SnapshotHeader) {
        self.log_id = header.log_id;
        self.producers = Producers::from_wire(header.producers);
        self.machine.last_seq = header.last_seq;
        self.machine.last_token = header.last_token;
        self.machine.last_ended = header.last_ended;
        let queue = |(name, paused, totals)| (name, paused, from_wire_totals(totals));
        self.machine.queues = header.queues.into_iter().map(queue).collect();
        self.history_limits = (&header.history).into();
        self.capacity = header.capacity;
    }
}

pub(crate) fn list_parts(
    state: &MachineSnapshot<StoredPayload>,
    leases: Vec<StandingLease>,
) -> Vec<SnapshotPart> {
    let ended = state.ended.iter().filter_map(|(seq, view)| wire::EndedJob::new(*seq, view));
    let pins = state.pins.iter().map(|(receipt, until)| (receipt.id, receipt.due, *until));
    let runners = state.runners.iter().cloned();
    let runners = runners.map(|Announced { name, info, at, until, .. }| (name, info, at, until));
    let ended = parts(ended).map(SnapshotPart::Ended);
    let pins = parts(pins).map(SnapshotPart::Pins);
    let runners = parts(runners).map(SnapshotPart::Runners);
    let leases = parts(leases.into_iter()).map(SnapshotPart::Leases);
    let gates = parts(state.gates.iter().cloned().map(wire::Gate::from)).map(SnapshotPart::Gates);
    ended.chain(pins).chain(runners).chain(leases).chain(gates).collect()
}

/// A job without its payload (`None`) keeps the checksum, by which claims find out.
pub(crate) fn job_parts(
    jobs: Vec<JobSnapshot<StoredPayload>>,
    payload: impl Fn(JobId, &PayloadRef) -> Option<Bytes>,
) -> Vec<SnapshotPart> {
    let jobs =
        jobs.into_iter().map(|JobSnapshot { job, stored, seq, placement, parked, notes }| {
            SnapshotJob {
                job: (&job).into(),
                seq,
                state: match placement {
                    JobPlacement::Waiting if parked => SnapshotJobState::Parked,
                    JobPlacement::Waiting => SnapshotJobState::Waiting,
                    JobPlacement::Leased { token, until } => {
                        SnapshotJobState::Leased(token.0, until)
                    }
                    JobPlacement::Dead(reason, since) => SnapshotJobState::Dead(*reason, since),
                },
                notes: notes.map(|notes| (&*notes).into()),
                payload: match payload(job.id, &stored.payload) {
                    Some(bytes) => bytes.into(),
                    None => wire::Payload::lost(stored.payload.checksum),
                },
                headers: stored.headers(),
            }
        });
    parts(jobs).map(SnapshotPart::Jobs).collect()
}

fn parts<T: Serialize>(items: impl Iterator<Item = T>) -> impl Iterator<Item = Vec<T>> {
    chunks(items, PART_ITEMS, PART_BYTES, wire::encoded_size)
}

fn from_wire_job(snapshot_job: SnapshotJob, position: LogPosition) -> JobSnapshot<StoredPayload> {
    let SnapshotJob { job, seq, state, notes, payload, headers } = snapshot_job;
    let stored = StoredPayload::new(PayloadRef::new(position, &payload), &headers);
    let parked = matches!(state, SnapshotJobState::Parked);
    let placement = match state {
        SnapshotJobState::Waiting | SnapshotJobState::Parked => JobPlacement::Waiting,
        SnapshotJobState::Leased(token, until) => {
            JobPlacement::Leased { token: FencingToken(token), until }
        }
        SnapshotJobState::Dead(reason, since) => JobPlacement::Dead(Box::new(reason), since),
    };
    let notes = notes.map(|notes| Box::new(notes.into()));
    let mut job = job.into_core();
    if let Some(group) = headers.get(Headers::GROUP) {
        job.headers.insert(Headers::GROUP, group);
    }
    JobSnapshot { job, stored, seq, placement, parked, notes }
}

pub(crate) fn to_wire_totals(totals: &dq_core::Totals) -> wire::Totals {
    [totals.created, totals.done, totals.skipped, totals.cancelled, totals.replaced, totals.removed]
}

fn from_wire_totals(wire: wire::Totals) -> dq_core::Totals {
    let mut totals = dq_core::Totals::default();
    [
        totals.created,
        totals.done,
        totals.skipped,
        totals.cancelled,
        totals.replaced,
        totals.removed,
    ] = wire;
    totals
}
