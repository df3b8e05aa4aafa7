//! The stored form of a job: the *record*, written once, and the *state*, rewritten whenever a
//! lease begins or ends. `scripts/library/keys.lua` describes the bytes.

use bytes::Bytes;
use dq_core::{
    DeadKind, DeadReason, Ended, Ending, Headers, Job, JobKey, JobState, JobView, NewJob,
    OnConflict, OnRunning, QueueName, Timestamp,
};

use crate::handle;

const KEY: u8 = 1;
const MAX_ATTEMPTS: u8 = 2;
const HEADERS: u8 = 4;
const PIN: u8 = 8;
const DETACH: u8 = 64;

/// Maximum of [`NewJob::remember`] in milliseconds, some 4,000 years: it fits into a note's six
/// bytes.
pub(crate) const MAX_REMEMBER: u64 = (1 << 47) - 1;

/// A record begins with the time when the job was accepted.
const ACCEPTED_BYTES: usize = 6;

/// `None` for a policy from a newer `dq-core`.
pub(crate) fn policy(on_conflict: OnConflict) -> Option<u8> {
    match on_conflict {
        OnConflict::Keep => Some(0),
        OnConflict::Replace => Some(1),
        OnConflict::Earliest => Some(2),
        OnConflict::Latest => Some(3),
        _ => None,
    }
}

/// `accepted` is an estimate, which a script may correct.
pub(crate) fn encode(job: &NewJob, accepted: i64) -> Vec<u8> {
    let mut record = encode_prefix(job, accepted);
    record.extend(&job.payload);
    record
}

/// Leaves out the payload, too.
pub(crate) fn encode_prefix(job: &NewJob, accepted: i64) -> Vec<u8> {
    let mut record = Vec::with_capacity(16 + job.payload.len() + job.headers.size_bytes());
    record.extend(&accepted.to_be_bytes()[2..]);
    record.extend(handle::tail(job.id));
    let mut flags = policy(job.on_conflict).expect("`schedule` refuses others") * 16;
    for (flag, is_set) in [
        (KEY, job.key.is_some()),
        (MAX_ATTEMPTS, job.max_attempts.is_some()),
        (HEADERS, !job.headers.is_empty()),
        (PIN, !job.remember.is_zero()),
        (DETACH, job.on_running == OnRunning::Detach),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    record.push(flags);
    if let Some(key) = &job.key {
        let key = key.as_str().as_bytes();
        record.push(u8::try_from(key.len()).expect("keys have at most 255 bytes"));
        record.extend(key);
    }
    if let Some(max_attempts) = job.max_attempts {
        record.extend(max_attempts.to_be_bytes());
    }
    if !job.headers.is_empty() {
        let headers = serde_json::to_vec(&job.headers).expect("text becomes JSON");
        record.extend(u32::try_from(headers.len()).expect("headers are bounded").to_be_bytes());
        record.extend(headers);
    }
    record
}

/// The numbers of a state, without the fencing token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) due: i64,
    attempts: u32,
    deliveries: u32,
    losses: u32,
    /// Milliseconds from the first due time to the current one.
    postponed: i64,
}

impl Numbers {
    const BYTES: usize = 36;

    /// A short or empty state belongs to a job that was never leased.
    pub(crate) fn decode(state: &[u8]) -> Self {
        Self::read(state).unwrap_or_default()
    }

    fn read(state: &[u8]) -> Option<Self> {
        let mut rest = state.get(8..)?;
        let due = i64::from_be_bytes(take(&mut rest)?);
        let attempts = u32::from_be_bytes(take(&mut rest)?);
        let deliveries = u32::from_be_bytes(take(&mut rest)?);
        let losses = u32::from_be_bytes(take(&mut rest)?);
        let postponed = i64::from_be_bytes(take(&mut rest)?);
        Some(Self { due, attempts, deliveries, losses, postponed })
    }

    /// The job's due time must be set.
    fn copy_to(self, job: &mut Job) {
        job.attempts = self.attempts;
        job.deliveries = self.deliveries;
        job.losses = self.losses;
        let first_due = job.due.as_millis().saturating_sub(self.postponed);
        job.first_due = Timestamp::from_millis(first_due);
    }
}

/// `None` if the record is malformed. Ignores the due time in `numbers`, which is zero for jobs
/// that were never leased.
pub(crate) fn decode(
    queue: &QueueName,
    handle: &[u8],
    record: &Bytes,
    due: i64,
    numbers: Numbers,
) -> Option<Job> {
    let mut rest = &record[..];
    let created = big_endian(split(&mut rest, ACCEPTED_BYTES)?);
    let tail: [u8; 2] = take(&mut rest)?;
    let [flags] = take(&mut rest)?;
    let mut key = None;
    if flags & KEY != 0 {
        let [length] = take(&mut rest)?;
        let text = str::from_utf8(split(&mut rest, length.into())?).ok()?;
        key = Some(JobKey::new(text).ok()?);
    }
    let mut max_attempts = None;
    if flags & MAX_ATTEMPTS != 0 {
        max_attempts = Some(u32::from_be_bytes(take(&mut rest)?));
    }
    let mut headers = Headers::new();
    if flags & HEADERS != 0 {
        let length = u32::from_be_bytes(take(&mut rest)?);
        headers = serde_json::from_slice(split(&mut rest, usize::try_from(length).ok()?)?).ok()?;
    }
    let mut job = Job::new(
        handle::id(handle, &tail)?,
        queue.clone(),
        Timestamp::from_millis(due),
        Timestamp::from_millis(created),
        record.slice_ref(rest),
    );
    job.key = key;
    job.headers = headers;
    job.max_attempts = max_attempts;
    numbers.copy_to(&mut job);
    Some(job)
}

/// Makes a job of a malformed record, with the whole record as its payload. `None` if the handle
/// has another length.
pub(crate) fn undecodable(
    queue: &QueueName,
    handle: &[u8],
    record: &Bytes,
    due: i64,
    numbers: Numbers,
) -> Option<Job> {
    let mut job = Job::new(
        handle::id(handle, record.get(6..8).unwrap_or(&[0; 2]))?,
        queue.clone(),
        Timestamp::from_millis(due),
        Timestamp::EPOCH,
        record.clone(),
    );
    numbers.copy_to(&mut job);
    Some(job)
}

pub(crate) fn encode_reason(reason: &DeadReason) -> Vec<u8> {
    [reason.kind.as_str().as_bytes(), &[0], reason.message.as_bytes()].concat()
}

/// A malformed reason gets the kind `Other`, with the whole text as message.
pub(crate) fn decode_reason(raw: &[u8]) -> DeadReason {
    let text = String::from_utf8_lossy(raw);
    let (kind, message) = text.split_once('\0').unwrap_or(("", &text));
    DeadReason::new(DeadKind::from_name(kind), message)
}

/// The part of a state for operators and for the job's end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Note<'a> {
    pub(crate) leased_since: Option<Timestamp>,
    pub(crate) worker: Option<String>,
    pub(crate) last_error: Option<String>,
    // Scripts copy these four from the record when a lease begins or the job ends.
    max_attempts: Option<u32>,
    created: i64,
    tail: [u8; 2],
    key: &'a [u8],
}

impl<'a> Note<'a> {
    pub(crate) fn decode(state: &'a [u8]) -> Self {
        Self::read(state).unwrap_or_default()
    }

    fn read(state: &'a [u8]) -> Option<Self> {
        let mut rest = state.get(Numbers::BYTES..)?;
        let since = big_endian(split(&mut rest, 6)?);
        let _remember = split(&mut rest, 6)?;
        let max_attempts = u32::from_be_bytes(take(&mut rest)?);
        let created = big_endian(split(&mut rest, ACCEPTED_BYTES)?);
        let tail = take(&mut rest)?;
        let [has_error, worker_length, key_length] = take(&mut rest)?;
        let key = split(&mut rest, key_length.into())?;
        let worker = split(&mut rest, worker_length.into())?;
        let was_leased = since > 0;
        Some(Self {
            leased_since: was_leased.then_some(Timestamp::from_millis(since)),
            worker: was_leased.then(|| String::from_utf8_lossy(worker).into_owned()),
            last_error: (has_error == 1).then(|| String::from_utf8_lossy(rest).into_owned()),
            max_attempts: (max_attempts > 0).then_some(max_attempts),
            created,
            tail,
            key,
        })
    }
}

/// `None` if the ended job is malformed.
pub(crate) fn decode_past(
    queue: &QueueName,
    handle: &[u8],
    mut past: &[u8],
    ended_at: Timestamp,
) -> Option<JobView> {
    let [letter] = take(&mut past)?;
    let length = u32::from_be_bytes(take(&mut past)?);
    let state = split(&mut past, usize::try_from(length).ok()?)?;
    let (numbers, note) = (Numbers::read(state)?, Note::read(state)?);
    let (ending, reason) = match letter {
        b'D' => (Ending::Done, None),
        b'S' => (Ending::Skipped, Some(String::from_utf8_lossy(past).into_owned())),
        b'C' => (Ending::Cancelled, None),
        b'R' => (Ending::Replaced, None),
        b'M' => (Ending::Removed, (!past.is_empty()).then(|| decode_reason(past).to_string())),
        _ => return None,
    };
    let id = handle::id(handle, &note.tail)?;
    let due = Timestamp::from_millis(numbers.due);
    let created = Timestamp::from_millis(note.created);
    let mut job = Job::new(id, queue.clone(), due, created, Bytes::new());
    job.key = match note.key {
        [] => None,
        key => Some(JobKey::new(str::from_utf8(key).ok()?).ok()?),
    };
    job.max_attempts = note.max_attempts;
    numbers.copy_to(&mut job);
    let mut view = JobView::new(job, JobState::Ended);
    view.leased_since = note.leased_since;
    view.worker = note.worker;
    view.last_error = note.last_error;
    let mut ended = Ended::new(ending, ended_at);
    ended.reason = reason;
    view.ended = Some(ended);
    Some(view)
}

fn big_endian(bytes: &[u8]) -> i64 {
    bytes.iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    split(rest, N)?.try_into().ok()
}

/// `None` if there are fewer bytes.
fn split<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}
