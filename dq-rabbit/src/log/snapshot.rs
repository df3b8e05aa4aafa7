//! Snapshots of the state in the log, so that the broker can delete the messages before them.
//!
//! A snapshot is a [`SnapshotPart::Begin`], a header, [`SnapshotPart::Extra`] parts, the jobs in
//! several parts, and a [`SnapshotPart::End`]. It holds the state right after its `Begin`; entries
//! of other commands go on between its parts. A process that starts to read in the middle of the
//! log collects parts until a snapshot is complete, restores its replica from it, and replays the
//! entries since its `Begin`.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dq_core::machine::{JobNotes, JobPlacement, JobSnapshot, MachineSnapshot};
use dq_core::{Announced, FencingToken, HistoryLimit, HistoryLimits, Job, JobId, Receipt};

use super::position::{LogPosition, PayloadRef, headers_of};
use super::producers::Producers;
use super::wire::{
    self, Command, Entry, LiveProcess, SnapshotExtra, SnapshotJob, SnapshotJobState, SnapshotPart,
    StandingLease,
};

/// Maximum number of items in one part.
const PART_ITEMS: usize = 500;
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
#[derive(Debug)]
pub(crate) struct CollectedSnapshot {
    /// The jobs have [`PayloadRef`]s in place of their payloads.
    pub(crate) machine: MachineSnapshot,
    pub(crate) history_limits: HistoryLimits,
    pub(crate) capacity: Option<u64>,
    pub(crate) log_id: u64,
    pub(crate) producers: Producers,
    /// The entries from the beginning of the snapshot on, without payloads: offset of the message,
    /// index in the message, entry.
    pub(crate) later_entries: Vec<(u64, u32, Entry)>,
    /// Ids of the jobs in `machine`.
    job_ids: HashSet<JobId>,
    /// Numbers of the extra parts that were read.
    extras: HashSet<u32>,
    notes: HashMap<JobId, JobNotes>,
    pub(crate) leases: Vec<StandingLease>,
    /// The level in force, and the live processes.
    pub(crate) levels: (u16, Vec<LiveProcess>),
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
                self.snapshots.insert(offset, CollectedSnapshot::new(later_entries));
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
            SnapshotPart::Extra { begin, number, extra } => {
                let Some(snapshot) = self.snapshots.get_mut(&begin) else { return };
                if snapshot.extras.insert(number) {
                    snapshot.add_extra(extra);
                }
            }
            SnapshotPart::End { begin, jobs, extras } => self.end(begin, jobs, extras),
        }
    }

    fn end(&mut self, begin: u64, jobs: u64, extras: u32) {
        // A broker that lost its newest messages may have lost parts that their writer has read
        // back.
        if let Some(snapshot) = self.snapshots.get_mut(&begin) {
            snapshot.is_complete = snapshot.has_header
                && snapshot.job_ids.len() as u64 == jobs
                && snapshot.extras.len() == extras as usize;
        }
    }

    /// Removes and returns a complete snapshot, if there is one.
    pub(crate) fn take_complete(&mut self) -> Option<CollectedSnapshot> {
        let begin = *self.snapshots.iter().find(|(_, snapshot)| snapshot.is_complete)?.0;
        let mut snapshot = self.snapshots.remove(&begin)?;
        for job in &mut snapshot.machine.jobs {
            job.notes = snapshot.notes.remove(&job.job.id).map(Box::new);
        }
        Some(snapshot)
    }
}

impl CollectedSnapshot {
    fn new(later_entries: Vec<(u64, u32, Entry)>) -> Self {
        Self {
            machine: MachineSnapshot::default(),
            history_limits: HistoryLimits::all(HistoryLimit::OFF),
            capacity: None,
            log_id: 0,
            producers: Producers::default(),
            later_entries,
            job_ids: HashSet::new(),
            extras: HashSet::new(),
            notes: HashMap::new(),
            leases: Vec::new(),
            levels: (0, Vec::new()),
            has_header: false,
            is_complete: false,
        }
    }

    fn add_extra(&mut self, extra: SnapshotExtra) {
        match extra {
            SnapshotExtra::History { limits, last_ended } => {
                self.history_limits = (&limits).into();
                self.machine.last_ended = last_ended;
            }
            SnapshotExtra::Notes(notes) => {
                self.notes.extend(notes.into_iter().map(|notes| (notes.job, notes.into())));
            }
            SnapshotExtra::Ended(jobs) => {
                self.machine.ended.extend(jobs.into_iter().map(Into::into));
            }
            SnapshotExtra::Pins(pins) => {
                let pin = |(id, due, until)| (Receipt { id, due }, until);
                self.machine.pins.extend(pins.into_iter().map(pin));
            }
            SnapshotExtra::Leases(leases) => self.leases.extend(leases),
            SnapshotExtra::Levels(level, processes) => self.levels = (level, processes),
            SnapshotExtra::Runners(runners) => {
                let runner = |(name, info, at, until)| Announced::new(name, info, at, until);
                self.machine.runners.extend(runners.into_iter().map(runner));
            }
            SnapshotExtra::Capacity(bytes) => self.capacity = Some(bytes),
        }
    }
}

/// The parts that hold everything of a state but its header and its jobs.
pub(crate) fn extra_parts(
    begin: u64,
    state: &MachineSnapshot,
    (limits, capacity): (&HistoryLimits, Option<u64>),
    leases: Vec<StandingLease>,
    (level, processes): (u16, Vec<LiveProcess>),
) -> Vec<SnapshotPart> {
    let mut extras = vec![
        SnapshotExtra::Levels(level, processes),
        SnapshotExtra::History { limits: limits.into(), last_ended: state.last_ended },
    ];
    extras.extend(capacity.map(SnapshotExtra::Capacity));
    let notes = state
        .jobs
        .iter()
        .filter_map(|job| job.notes.as_ref().map(|notes| wire::JobNotes::new(job.job.id, notes)));
    let notes = parts(notes, wire::JobNotes::approx_size);
    extras.extend(notes.into_iter().map(SnapshotExtra::Notes));
    let ended =
        state.ended.iter().filter_map(|(seq, view)| wire::EndedJob::new(*seq, view.clone()));
    let ended = parts(ended, wire::EndedJob::approx_size);
    extras.extend(ended.into_iter().map(SnapshotExtra::Ended));
    let pins = state.pins.iter().map(|(receipt, until)| (receipt.id, receipt.due, *until));
    extras.extend(parts(pins, |_| 32).into_iter().map(SnapshotExtra::Pins));
    let runners = state.runners.iter().cloned();
    let runners = runners.map(|Announced { name, info, at, until, .. }| (name, info, at, until));
    let runners = parts(runners, |(name, info, ..)| name.len() + info.len());
    extras.extend(runners.into_iter().map(SnapshotExtra::Runners));
    extras.extend(parts(leases.into_iter(), |_| 64).into_iter().map(SnapshotExtra::Leases));
    let part = |(number, extra)| SnapshotPart::Extra { begin, number, extra };
    (0..).zip(extras).map(part).collect()
}

/// Splits the jobs of a snapshot into parts. `payload` returns the payload of a job, or `None` if it
/// is lost; the job then keeps the checksum, by which claims find that out.
pub(crate) fn job_parts(
    begin: u64,
    jobs: Vec<JobSnapshot>,
    payload: impl Fn(&Job) -> Option<Bytes>,
) -> Vec<SnapshotPart> {
    let jobs = jobs.into_iter().map(|JobSnapshot { job, seq, placement, .. }| {
        let payload = match payload(&job) {
            Some(bytes) => bytes.into(),
            None => wire::Payload::lost(PayloadRef::of(&job).checksum),
        };
        SnapshotJob {
            job: wire::NewJob::stored(&job, payload, headers_of(&job)),
            created: job.created,
            counts: [job.attempts, job.deliveries, job.losses],
            seq,
            state: match placement {
                JobPlacement::Waiting => SnapshotJobState::Waiting,
                JobPlacement::Leased { token, until } => SnapshotJobState::Leased(token.0, until),
                JobPlacement::Dead(reason, since) => SnapshotJobState::Dead(*reason, since),
            },
        }
    });
    let parts = parts(jobs, |job| job.job.approx_size());
    parts.into_iter().map(|part| SnapshotPart::Jobs(begin, part)).collect()
}

/// Splits items into parts of limited number and size.
fn parts<T>(items: impl Iterator<Item = T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut bytes = 0;
    for item in items {
        bytes += size(&item);
        part.push(item);
        if part.len() >= PART_ITEMS || bytes >= PART_BYTES {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

fn from_wire_job(snapshot_job: SnapshotJob, position: LogPosition) -> JobSnapshot {
    let SnapshotJob { job, created, counts: [attempts, deliveries, losses], seq, state } =
        snapshot_job;
    let payload = PayloadRef::new(position, &job.payload);
    let new = job.with_payload(payload.to_bytes(&job.headers));
    let due = new.due.resolve(created);
    let mut job = Job::new(new.id, new.queue, due, created, new.payload);
    job.key = new.key;
    job.max_attempts = new.max_attempts;
    job.attempts = attempts;
    job.deliveries = deliveries;
    job.losses = losses;
    let placement = match state {
        SnapshotJobState::Waiting => JobPlacement::Waiting,
        SnapshotJobState::Leased(token, until) => {
            JobPlacement::Leased { token: FencingToken(token), until }
        }
        SnapshotJobState::Dead(reason, since) => JobPlacement::Dead(Box::new(reason), since),
    };
    JobSnapshot { job, seq, placement, notes: None }
}

/// The totals of a queue in the order of [`wire::Totals`].
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
