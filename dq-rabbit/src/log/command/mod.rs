//! What is written to the log: calls, as bytes.
//!
//! A message of the log is `dq`, one byte for the version of this format, and a [`Message`] in the format
//! of the `postcard` crate. New commands are added at the end of [`Command`]: a process that
//! does not know one stops with `Incompatible` instead of guessing.

use std::time::Duration;

use bytes::Bytes;
use dq_core::machine::Operate;
use dq_core::{DeadReason, Totals};
use dq_core::{
    Due, Error, ErrorKind, FencingToken, Headers, JobId, JobKey, JobRef, Lease, NewJob, OnConflict,
    QueueName, Renewal, Reschedule, Result, Settlement, Target, Timestamp, Verdict, Want,
};
use serde::{Deserialize, Serialize};

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

impl From<NewJob> for Scheduling {
    fn from(job: NewJob) -> Self {
        Self {
            id: job.id,
            queue: job.queue,
            key: job.key,
            on_conflict: match job.on_conflict {
                OnConflict::Keep => Policy::Keep,
                OnConflict::Replace => Policy::Replace,
                OnConflict::Earliest => Policy::Earliest,
                OnConflict::Latest => Policy::Latest,
            },
            due: job.due.into(),
            max_attempts: job.max_attempts,
            payload: job.payload,
            headers: job.headers,
        }
    }
}

impl Scheduling {
    /// Of a job that is in the store already.
    pub(crate) fn of(job: &dq_core::Job) -> Self {
        Self {
            id: job.id,
            queue: job.queue.clone(),
            key: job.key.clone(),
            on_conflict: Policy::Keep,
            due: When::At(job.due),
            max_attempts: job.max_attempts,
            payload: job.payload.clone(),
            headers: job.headers.clone(),
        }
    }

    /// The job with this in place of its payload, and without its headers.
    pub(crate) fn job(&self, payload: Bytes) -> NewJob {
        NewJob {
            id: self.id,
            queue: self.queue.clone(),
            key: self.key.clone(),
            on_conflict: match self.on_conflict {
                Policy::Keep => OnConflict::Keep,
                Policy::Replace => OnConflict::Replace,
                Policy::Earliest => OnConflict::Earliest,
                Policy::Latest => OnConflict::Latest,
            },
            due: self.due.into(),
            payload,
            headers: Headers::new(),
            max_attempts: self.max_attempts,
        }
    }

    /// Lets go of what is read again when it is needed.
    pub(crate) fn strip(&mut self) {
        self.payload = Bytes::new();
        self.headers = Headers::new();
    }

    /// Bytes that it takes in the log, roughly.
    pub(crate) fn weight(&self) -> usize {
        96 + self.payload.len() + self.headers.bytes()
    }
}

impl From<Due> for When {
    fn from(due: Due) -> Self {
        match due {
            Due::At(at) => Self::At(at),
            Due::After(delay) => Self::After(millis(delay)),
        }
    }
}

impl From<When> for Due {
    fn from(when: When) -> Self {
        match when {
            When::At(at) => Self::At(at),
            When::After(delay) => Self::After(Duration::from_millis(delay)),
        }
    }
}

impl From<&JobRef> for Naming {
    fn from(job: &JobRef) -> Self {
        let name = match &job.target {
            Target::Id(id) => Name::Id(*id),
            Target::Key(key) => Name::Key(key.clone()),
        };
        Self(job.queue.clone(), name)
    }
}

impl From<&Naming> for JobRef {
    fn from(naming: &Naming) -> Self {
        match &naming.1 {
            Name::Id(id) => Self::new(naming.0.clone(), *id),
            Name::Key(key) => Self::new(naming.0.clone(), key.clone()),
        }
    }
}

impl From<&Reschedule> for Moving {
    fn from(wish: &Reschedule) -> Self {
        Self((&wish.job).into(), wish.due.into())
    }
}

impl From<&Moving> for Reschedule {
    fn from(moving: &Moving) -> Self {
        Self { job: (&moving.0).into(), due: moving.1.into() }
    }
}

impl Claiming {
    pub(crate) fn new(wants: &[Want], limit: usize, at_hand: Vec<JobId>) -> Self {
        let want = |want: &Want| (want.queue.clone(), want.max as u64, millis(want.lease_for));
        Self { wants: wants.iter().map(want).collect(), limit: limit as u64, at_hand }
    }

    pub(crate) fn wants(&self) -> Vec<Want> {
        let want = |(queue, max, lease): &(QueueName, u64, u64)| Want {
            queue: queue.clone(),
            max: usize::try_from(*max).unwrap_or(usize::MAX),
            lease_for: Duration::from_millis(*lease),
        };
        self.wants.iter().map(want).collect()
    }
}

impl From<&Lease> for Held {
    fn from(lease: &Lease) -> Self {
        Self(lease.queue.clone(), lease.job, lease.token.0)
    }
}

impl From<&Held> for Lease {
    fn from(held: &Held) -> Self {
        Self { queue: held.0.clone(), job: held.1, token: FencingToken(held.2) }
    }
}

impl From<&Renewal> for Renewing {
    fn from(renewal: &Renewal) -> Self {
        Self((&renewal.lease).into(), millis(renewal.lease_for))
    }
}

impl From<&Renewing> for Renewal {
    fn from(renewing: &Renewing) -> Self {
        Self { lease: (&renewing.0).into(), lease_for: Duration::from_millis(renewing.1) }
    }
}

impl TryFrom<&Settlement> for Settling {
    type Error = Error;

    fn try_from(settlement: &Settlement) -> Result<Self> {
        let ending = match &settlement.verdict {
            Verdict::Done => Ending::Done,
            Verdict::Skip => Ending::Skip,
            Verdict::Retry(due) => Ending::Retry((*due).into()),
            Verdict::Snooze(due) => Ending::Snooze((*due).into()),
            Verdict::Dead { reason, failed } => Ending::Dead {
                kind: reason.kind.as_str().to_owned(),
                message: reason.message.clone(),
                failed: *failed,
            },
            Verdict::Release { started } => Ending::Release { started: *started },
            unknown => {
                let what = format!("the verdict {unknown:?} is not one that the log can hold");
                return Err(Error::new(ErrorKind::Internal, what).operation("settle"));
            }
        };
        Ok(Self((&settlement.lease).into(), ending))
    }
}

impl From<&Settling> for Settlement {
    fn from(settling: &Settling) -> Self {
        let verdict = match &settling.1 {
            Ending::Done => Verdict::Done,
            Ending::Skip => Verdict::Skip,
            Ending::Retry(due) => Verdict::Retry((*due).into()),
            Ending::Snooze(due) => Verdict::Snooze((*due).into()),
            Ending::Dead { kind, message, failed } => Verdict::Dead {
                reason: DeadReason::new(dq_core::DeadKind::from_word(kind), message.clone()),
                failed: *failed,
            },
            Ending::Release { started } => Verdict::Release { started: *started },
        };
        Self { lease: (&settling.0).into(), verdict }
    }
}

impl From<Operate> for Operating {
    fn from(operate: Operate) -> Self {
        match operate {
            Operate::Replay { jobs, due } => Self::Replay(jobs, due.into()),
            Operate::Remove { jobs } => Self::Remove(jobs),
            Operate::Pause => Self::Pause,
            Operate::Resume => Self::Resume,
            Operate::Purge => Self::Purge,
        }
    }
}

impl From<&Operating> for Operate {
    fn from(operating: &Operating) -> Self {
        match operating {
            Operating::Replay(jobs, due) => Self::Replay { jobs: jobs.clone(), due: (*due).into() },
            Operating::Remove(jobs) => Self::Remove { jobs: jobs.clone() },
            Operating::Pause => Self::Pause,
            Operating::Resume => Self::Resume,
            Operating::Purge => Self::Purge,
        }
    }
}

/// Totals as they are written.
pub(crate) fn counts(totals: &Totals) -> Counts {
    let Totals { created, done, skipped, cancelled, replaced, removed } = *totals;
    [created, done, skipped, cancelled, replaced, removed]
}

/// Totals as they were written.
pub(crate) fn totals(counts: Counts) -> Totals {
    let [created, done, skipped, cancelled, replaced, removed] = counts;
    Totals { created, done, skipped, cancelled, replaced, removed }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
