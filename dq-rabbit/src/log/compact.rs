//! Copies of the state in the log, so that its beginning can be forgotten.
//!
//! The broker keeps the last `log_size` bytes of the log. Before what is live could fall off its end, or
//! when many messages have come, one process writes a copy: [`Piece::Begin`], the pieces, [`Piece::End`].
//! The state that is copied is that at `Begin`; calls go on meanwhile, and stand between the pieces. Who
//! starts to read there, or anywhere behind the beginning of the log, waits for a whole copy, and then
//! applies what was said since its `Begin`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dq_core::machine::{JobPlacement, JobSnapshot, Machine, MachineSnapshot};
use dq_core::{FencingToken, Job, JobId, Result};

use super::Shared;
use super::command::{
    Command, Copied, CopiedPlace, Counts, Entry, Piece, Scheduling, counts, totals,
};
use super::fetch;
use super::replica::{Place, Replica};
use crate::error::Effect;

/// Jobs whose payloads are read at once.
const READ: usize = 5_000;
/// Jobs of one piece, at most.
const JOBS: usize = 500;
/// Bytes of one piece, roughly, at most.
const BYTES: usize = 256 * 1024;

/// Copies that are being read, by the offsets at which they were begun. Each piece may be there twice,
/// and so may a beginning; but what comes after names the one that counted.
#[derive(Debug, Default)]
pub(crate) struct Founding {
    reading: HashMap<u64, Reading>,
}

#[derive(Debug)]
struct Reading {
    copy: MachineSnapshot,
    /// The jobs of the copy.
    ids: HashSet<JobId>,
    epoch: u64,
    origins: HashMap<u64, (u64, u64)>,
    framed: bool,
    /// What was said since.
    since: Vec<(u64, u32, Entry)>,
    whole: bool,
}

impl Founding {
    /// Notes an entry that cannot be applied yet.
    pub(super) fn take(&mut self, offset: u64, index: u32, mut entry: Entry) {
        entry.strip();
        for reading in self.reading.values_mut() {
            reading.since.push((offset, index, entry.clone()));
        }
        let Command::Copy(piece) = entry.command else { return };
        match piece {
            Piece::Begin => {
                // The entry itself counts as said since: its number is that of the origin's last then.
                let since = vec![(offset, index, Entry { command: Command::Look, ..entry })];
                let reading = Reading {
                    copy: MachineSnapshot::default(),
                    ids: HashSet::new(),
                    epoch: 0,
                    origins: HashMap::new(),
                    framed: false,
                    since,
                    whole: false,
                };
                self.reading.insert(offset, reading);
            }
            Piece::Frame { begin, epoch, last_seq, last_token, origins, queues } => {
                let Some(reading) = self.reading.get_mut(&begin) else { return };
                reading.framed = true;
                reading.epoch = epoch;
                reading.copy.last_seq = last_seq;
                reading.copy.last_token = last_token;
                reading.origins = origins.into_iter().map(|(o, n, at)| (o, (n, at))).collect();
                let queue = |(name, paused, counts)| (name, paused, totals(counts));
                reading.copy.queues = queues.into_iter().map(queue).collect();
            }
            Piece::Jobs(begin, jobs) => {
                let Some(reading) = self.reading.get_mut(&begin) else { return };
                for (job, copied) in jobs.into_iter().enumerate() {
                    let place = Place { offset, entry: index, job: job as u32 };
                    if reading.ids.insert(copied.job.id) {
                        reading.copy.jobs.push(standing(copied, place));
                    }
                }
            }
            Piece::End { begin, jobs } => {
                // A broker that lost its newest messages may have lost pieces that were read before.
                if let Some(reading) = self.reading.get_mut(&begin) {
                    reading.whole = reading.framed && reading.ids.len() as u64 == jobs;
                }
            }
        }
    }

    fn whole(&mut self) -> Option<Reading> {
        let begin = *self.reading.iter().find(|(_, reading)| reading.whole)?.0;
        self.reading.remove(&begin)
    }
}

impl Replica {
    /// Founds the state on a copy, if one is whole: the entries since its beginning, to be applied.
    pub(crate) fn found(&mut self) -> Vec<(u64, u32, Entry)> {
        let Some(reading) = self.founding.as_mut().and_then(Founding::whole) else {
            return Vec::new();
        };
        self.machine = Machine::restore(reading.copy);
        self.epoch = reading.epoch;
        self.origins = reading.origins;
        self.founding = None;
        reading.since
    }

    /// The state as it is now, for a copy that began at this offset: the frame, and the jobs without
    /// their payloads.
    pub(crate) fn copy(&self, begin: u64) -> (Piece, Vec<JobSnapshot>) {
        let copy = self.machine.snapshot();
        let origins = self.origins.iter().map(|(origin, (number, at))| (*origin, *number, *at));
        let queue = |(name, paused, totals): (_, _, _)| -> (_, bool, Counts) {
            (name, paused, counts(&totals))
        };
        let frame = Piece::Frame {
            begin,
            epoch: self.epoch,
            last_seq: copy.last_seq,
            last_token: copy.last_token,
            origins: origins.collect(),
            queues: copy.queues.into_iter().map(queue).collect(),
        };
        (frame, copy.jobs)
    }

    /// Takes note of a piece of a copy: payloads stand there now.
    pub(super) fn copied(&mut self, offset: u64, index: u32, piece: &Piece) {
        let Piece::Jobs(begin, jobs) = piece else { return };
        for (job, copied) in jobs.iter().enumerate() {
            let place = Place { offset, entry: index, job: job as u32 };
            let present = self.machine.peek(copied.job.id).map(Place::of);
            // Another job may have come under the same id since.
            if present.is_some_and(|present| present.offset < *begin) {
                self.machine.set_payload(copied.job.id, place.to_bytes());
            }
        }
    }
}

/// Writes a copy, unless we are at it. It is looked whether it is time at each entry of one's own. Several
/// processes may find so at once; the one that comes first in the log goes on, and if it dies, another
/// after a while.
pub(super) fn start(shared: &Arc<Shared>) {
    if shared.copying.swap(true, Ordering::AcqRel) {
        return;
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let stop = shared.stop.clone();
        if let Some(Err(error)) = stop.run_until_cancelled(write(&shared)).await {
            tracing::warn!(%error, "the log could not be shortened; it will be tried again");
        }
        shared.copying.store(false, Ordering::Release);
    });
}

/// Writes a copy of the state.
async fn write(shared: &Shared) -> Result<()> {
    const OPERATION: &str = "shorten the log";
    let copy = |piece| Command::Copy(piece);
    let begun = shared
        .call(OPERATION, Effect::None, copy(Piece::Begin), |replica, _, at| {
            at.begins.then(|| (at.offset, replica.copy(at.offset)))
        })
        .await?;
    let Some((begin, (frame, jobs))) = begun else { return Ok(()) };
    shared.call(OPERATION, Effect::None, copy(frame), |_, _, _| ()).await?;
    let mut jobs = jobs.into_iter();
    let mut copied = 0;
    loop {
        let some: Vec<_> = jobs.by_ref().take(READ).collect();
        if some.is_empty() {
            break;
        }
        let places = some.iter().map(|standing| Place::of(&standing.job)).collect();
        let found = fetch::read(shared, places).await?;
        let mut payloads = HashMap::with_capacity(some.len());
        for standing in &some {
            // One that is not there any more must not keep all others from being copied.
            let payload = found.get(&Place::of(&standing.job)).cloned().unwrap_or_else(|| {
                tracing::error!(id = %standing.job.id, "the payload of a job is not in the log");
                Default::default()
            });
            payloads.insert(standing.job.id, payload);
        }
        copied += payloads.len() as u64;
        for piece in pieces(begin, some, payloads) {
            shared.call(OPERATION, Effect::None, copy(piece), |_, _, _| ()).await?;
        }
    }
    shared
        .call(OPERATION, Effect::None, copy(Piece::End { begin, jobs: copied }), |_, _, _| ())
        .await
}

/// The jobs of a copy in pieces, whose payloads and headers are read in `payloads`.
pub(super) fn pieces(
    begin: u64,
    jobs: Vec<JobSnapshot>,
    mut payloads: HashMap<JobId, (Bytes, dq_core::Headers)>,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut piece = Vec::new();
    let mut bytes = 0;
    for JobSnapshot { mut job, seq, placement } in jobs {
        let Some((payload, headers)) = payloads.remove(&job.id) else { continue };
        job.payload = payload;
        job.headers = headers;
        let scheduling = Scheduling::of(&job);
        bytes += scheduling.weight();
        piece.push(Copied {
            job: scheduling,
            created: job.created,
            counts: [job.attempts, job.deliveries, job.losses],
            seq,
            place: match placement {
                JobPlacement::Waiting => CopiedPlace::Waiting,
                JobPlacement::Leased { token, until } => CopiedPlace::Leased(token.0, until),
                JobPlacement::Dead(reason, since) => CopiedPlace::Dead(*reason, since),
            },
        });
        if piece.len() >= JOBS || bytes >= BYTES {
            pieces.push(Piece::Jobs(begin, std::mem::take(&mut piece)));
            bytes = 0;
        }
    }
    if !piece.is_empty() {
        pieces.push(Piece::Jobs(begin, piece));
    }
    pieces
}

fn standing(copied: Copied, place: Place) -> JobSnapshot {
    let Copied {
        job: scheduling,
        created,
        counts: [attempts, deliveries, losses],
        seq,
        place: filed,
    } = copied;
    let new = scheduling.job(place.to_bytes());
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
    let placement = match filed {
        CopiedPlace::Waiting => JobPlacement::Waiting,
        CopiedPlace::Leased(token, until) => {
            JobPlacement::Leased { token: FencingToken(token), until }
        }
        CopiedPlace::Dead(reason, since) => JobPlacement::Dead(Box::new(reason), since),
    };
    JobSnapshot { job, seq, placement }
}
