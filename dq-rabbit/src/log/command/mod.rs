//! What is written to the log: calls, as bytes.
//!
//! A message of the log is `dq`, one byte for the version of this format, and a [`Message`] in the format
//! of the `postcard` crate. New commands are added at the end of [`Command`]: a process that
//! does not know one stops with `Incompatible` instead of guessing.

mod convert;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use dq_core::{DeadReason, Error, ErrorKind, Headers, JobId, JobKey, QueueName, Result, Timestamp};
use serde::{Deserialize, Serialize};

pub(crate) use convert::{counts, totals};

/// What every message of ours begins with. What begins otherwise was written by somebody else.
const OURS: &[u8] = b"dq";
/// The version that is written.
const VERSION: u8 = 1;

/// What came together to be written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Message<E> {
    /// Where whoever wrote it would begin to read the log: at the beginning of the newest whole copy, or of
    /// the log. `None` if that is not known yet.
    pub(crate) since: Option<u64>,
    pub(crate) entries: E,
}

/// One call, by one process, at one time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Who calls: a number that each opening of the log draws anew.
    pub(crate) origin: u64,
    /// Which of its calls this is, from 1 without gaps. One that is written twice counts once.
    pub(crate) number: u64,
    /// The caller's clock.
    pub(crate) at: Timestamp,
    pub(crate) command: Command,
}

/// A call that changes something, or wants to see the state at its place in the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Nothing: whoever reads it back has seen all that was written before.
    Look,
    Schedule(Vec<Scheduling>),
    Cancel(Vec<Naming>),
    Reschedule(Vec<Moving>),
    Claim(Claiming),
    Settle(Vec<Settling>),
    Renew(Vec<Renewing>),
    Operate(QueueName, Operating),
    /// What was found where only jobs should be, each with what is wrong with it.
    Park(Vec<(Scheduling, String)>),
    /// A piece of a copy of the state: see [`compact`](super::compact).
    Copy(Piece),
}

/// A new job. The payload and the headers are not kept in memory, but read again when needed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scheduling {
    pub(crate) id: JobId,
    pub(crate) queue: QueueName,
    key: Option<JobKey>,
    on_conflict: Policy,
    due: When,
    max_attempts: Option<u32>,
    pub(crate) payload: Bytes,
    pub(crate) headers: Headers,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Policy {
    Keep,
    Replace,
    Earliest,
    Latest,
}

/// A time, or a delay in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum When {
    At(Timestamp),
    After(u64),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Naming(QueueName, Name);

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Name {
    Id(JobId),
    Key(JobKey),
}

/// Which job, and when it shall be due.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Moving(Naming, When);

/// A claim: queue, how many, and for how many milliseconds each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claiming {
    wants: Vec<(QueueName, u64, u64)>,
    pub(crate) limit: u64,
    /// Jobs whose messages the claimer has at hand.
    pub(crate) at_hand: Vec<JobId>,
}

/// A lease: queue, job and token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Held(QueueName, JobId, u64);

/// Which lease, and for how many milliseconds more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Renewing(Held, u64);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settling(Held, Ending);

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Ending {
    Done,
    Skip,
    Retry(When),
    Snooze(When),
    Dead { kind: String, message: String, failed: bool },
    Release { started: bool },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Operating {
    Replay(Option<Vec<JobId>>, When),
    Remove(Option<Vec<JobId>>),
    Pause,
    Resume,
    Purge,
}

/// A piece of a copy. All but the first name the offset of the first, since there may be several copies
/// under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Piece {
    /// The state that follows is that at this place of the log.
    Begin,
    /// All but the jobs, with the offset of the `Begin`.
    Frame {
        begin: u64,
        epoch: u64,
        last_seq: u64,
        last_token: u64,
        origins: Vec<(u64, u64, u64)>,
        queues: Vec<(QueueName, bool, Counts)>,
    },
    /// Jobs as they stood then.
    Jobs(u64, Vec<Copied>),
    /// The copy that was begun at this offset is whole, with so many jobs.
    End { begin: u64, jobs: u64 },
}

/// Totals: created, done, skipped, cancelled, replaced, removed.
pub(crate) type Counts = [u64; 6];

/// A job with all that is known of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Copied {
    pub(crate) job: Scheduling,
    pub(crate) created: Timestamp,
    pub(crate) counts: [u32; 3],
    pub(crate) seq: u64,
    pub(crate) place: CopiedPlace,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum CopiedPlace {
    Waiting,
    Leased(u64, Timestamp),
    Dead(DeadReason, Timestamp),
}

impl Entry {
    /// Lets go of payloads.
    pub(crate) fn strip(&mut self) {
        match &mut self.command {
            Command::Schedule(jobs) => jobs.iter_mut().for_each(Scheduling::strip),
            Command::Park(found) => found.iter_mut().for_each(|(job, _)| job.strip()),
            Command::Copy(Piece::Jobs(_, jobs)) => jobs.iter_mut().for_each(|job| job.job.strip()),
            _ => {}
        }
    }
}

/// The bytes of a message of the log.
pub(crate) fn encode(since: Option<u64>, entries: &[Entry]) -> Vec<u8> {
    let start = [OURS, &[VERSION]].concat();
    postcard::to_extend(&Message { since, entries }, start)
        .expect("memory is the only thing that could be missing")
}

/// What a message of the log says: nothing, if it is not one of ours.
///
/// # Errors
/// `Incompatible` for what is of a newer version.
pub(crate) fn decode(message: &[u8]) -> Result<Message<Vec<Entry>>> {
    let strange = |what: String| {
        Error::new(ErrorKind::Incompatible, what)
            .remedy("let all processes of a prefix run the same version, and write nothing else to its log")
            .operation("read the log")
    };
    let Some(message) = message.strip_prefix(OURS) else {
        tracing::warn!(bytes = message.len(), "the log holds a message that is not ours");
        return Ok(Message { since: None, entries: Vec::new() });
    };
    match message.split_first() {
        Some((&VERSION, entries)) => postcard::from_bytes(entries)
            .map_err(|error| strange(format!("the log holds an entry that is unknown: {error}"))),
        Some((version, _)) => {
            Err(strange(format!("the log holds entries of version {version}; {VERSION} is known")))
        }
        None => Err(strange("the log holds a message that was cut off".to_owned())),
    }
}
