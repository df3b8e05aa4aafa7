//! Requests and replies as bytes: one byte for the version of the format, a checksum of eight bytes,
//! then `postcard`. Version and checksum stay the same in later versions. The order of variants and
//! fields is the format; new requests and replies are added at the end.
//!
//! A process replies in the version of the request. If it does not know that version, or the
//! request, it replies [`Outcome::Refused`] in its own. So a caller that reads another version than
//! its own knows that the request was not executed. It does not reply to a request that it cannot
//! read and that the broker has delivered before: another process may have executed it.

use std::borrow::Cow;

use dq_core::{Error, ErrorKind, JobId, OperateReport, QueueName, Receipt, Result, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::view::{Runner, Stats, View};
use crate::entries::MAX_ENTRY_ITEMS;
use crate::log::wire::{HistoryLimits, JobRef, NewJob, QueueOperation, Reschedule};

/// The version of the format that is written, and the only one that is read.
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 8;

/// A call of [`Backend::schedule`](dq_core::Backend::schedule) takes several requests if its jobs
/// are larger or more than this.
const PAGE_BYTES: usize = 1024 * 1024;
const PAGE_JOBS: usize = 10_000;

/// A call that names jobs takes several requests if they are more than this: as many as it takes
/// entries of the log, so that each entry has a time limit of its own.
pub(crate) const PAGE_ITEMS: usize = MAX_ENTRY_ITEMS;

/// A call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    Schedule(Vec<NewJob>),
    Cancel(Vec<JobRef>),
    Reschedule(Vec<Reschedule>),
    Operate(QueueName, QueueOperation),
    Stats(Vec<QueueName>),
    Get(JobRef),
    Forecast(QueueName, Vec<Timestamp>),
    Runners,
    /// Sets the limits of the history, as every process does that connects.
    SetHistory(HistoryLimits),
}

impl Request {
    /// A request to schedule these jobs.
    ///
    /// # Errors
    /// `Internal` for an option that has no form in the log.
    pub(crate) fn schedule(jobs: &[dq_core::NewJob]) -> Result<Self> {
        jobs.iter().cloned().map(NewJob::try_from).collect::<Result<_>>().map(Self::Schedule)
    }

    /// Whether it matters that the request is executed only once.
    pub(crate) fn must_run_once(&self) -> bool {
        match self {
            Self::Schedule(_) | Self::Cancel(_) | Self::Reschedule(_) | Self::Operate(..) => true,
            Self::Stats(_) | Self::Get(_) | Self::Forecast(..) | Self::Runners => false,
            // The second time, the log has these limits.
            Self::SetHistory(_) => false,
        }
    }
}

/// The result of a call that succeeded.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Scheduled(Vec<Scheduled>),
    Cancelled(Vec<Cancellation>),
    Rescheduled(Vec<Rescheduled>),
    /// Number of jobs or queues that changed, and whether there are more.
    Operated(u64, bool),
    Stats(Vec<Stats>),
    Job(Option<Box<View>>),
    Forecast(Vec<u64>),
    Runners(Vec<Runner>),
    Done,
}

/// The id and the due time of a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct JobReceipt(JobId, Timestamp);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Scheduled {
    Created(JobReceipt),
    Replaced(JobReceipt),
    Kept(JobReceipt),
    AlreadyRunning(JobReceipt),
    Ended(JobReceipt),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Cancellation {
    Cancelled,
    NotFound,
    AlreadyRunning,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Rescheduled {
    Moved(JobReceipt),
    NotFound,
    AlreadyRunning,
}

/// What a process says about a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// It was executed.
    Executed(Reply),
    /// It was executed and failed.
    Failed(Failure),
    /// It was not executed, and this process cannot execute it.
    Refused(Failure),
}

/// An [`Error`]: the name of its kind, message and remedy. Its source stays behind.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    kind: String,
    message: String,
    remedy: Option<String>,
}

/// All kinds of errors. One that is missing here reaches a light process as `Internal`.
const KINDS: [ErrorKind; 14] = [
    ErrorKind::InvalidInput,
    ErrorKind::Unsupported,
    ErrorKind::Config,
    ErrorKind::Duplicate,
    ErrorKind::Unhandled,
    ErrorKind::MissingState,
    ErrorKind::Codec,
    ErrorKind::Unavailable,
    ErrorKind::Full,
    ErrorKind::ReadOnly,
    ErrorKind::Incompatible,
    ErrorKind::OutcomeUnknown,
    ErrorKind::Closed,
    ErrorKind::Internal,
];

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().as_str().to_owned(),
            message: error.message().to_owned(),
            remedy: error.remedy_text().map(str::to_owned),
        }
    }
}

impl Failure {
    /// The error, as one of `operation`.
    pub(super) fn into_error(self, operation: &'static str) -> Error {
        let kind = KINDS.into_iter().find(|kind| kind.as_str() == self.kind);
        // A kind that a newer version has added. Whether the call may be repeated is unknown.
        let kind = kind.unwrap_or(ErrorKind::Internal);
        let error = Error::new(kind, self.message).operation(operation);
        match self.remedy {
            Some(remedy) => error.remedy(Cow::Owned(remedy)),
            None => error,
        }
    }
}

/// Why a request or a reply cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecodeFailure {
    /// It is not what was sent.
    Damaged,
    /// It has another version of the format.
    OtherVersion,
    /// It is intact, and has a variant or a field that this process does not know.
    Unknown,
}

impl DecodeFailure {
    pub(super) fn into_error(self) -> Error {
        let what = match self {
            Self::Damaged => {
                let what = "a request or its reply was damaged on the way";
                return Error::new(ErrorKind::Unavailable, what).remedy("repeat the call");
            }
            Self::OtherVersion => "another process sends another version of requests or replies",
            Self::Unknown => {
                "another process sends a request or a reply that this one does not know"
            }
        };
        Error::new(ErrorKind::Incompatible, what)
            .remedy("run the same version in all processes of a prefix")
    }
}

/// The checksum of a message, which also covers its version.
fn checksum(version: u8, body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    xxh3_64_with_seed(body, version.into()).to_le_bytes()
}

pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let start = vec![VERSION, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut encoded = postcard::to_extend(message, start).expect("writing to memory cannot fail");
    let (head, body) = encoded.split_at_mut(1 + CHECKSUM_BYTES);
    head[1..].copy_from_slice(&checksum(VERSION, body));
    encoded
}

/// Decodes a request or an outcome.
pub(super) fn decode<T: DeserializeOwned>(message: &[u8]) -> Result<T, DecodeFailure> {
    let intact = message.split_first().and_then(|(version, rest)| {
        let (sum, body) = rest.split_first_chunk()?;
        (*sum == checksum(*version, body)).then_some((*version, body))
    });
    let (version, body) = intact.ok_or(DecodeFailure::Damaged)?;
    if version != VERSION {
        return Err(DecodeFailure::OtherVersion);
    }
    match postcard::take_from_bytes(body) {
        Ok((decoded, [])) => Ok(decoded),
        _ => Err(DecodeFailure::Unknown),
    }
}

/// Splits the jobs of a call, one part for each request.
pub(crate) fn pages(jobs: Vec<dq_core::NewJob>) -> Vec<Vec<dq_core::NewJob>> {
    let mut pages = Vec::new();
    let (mut page, mut bytes) = (Vec::new(), 0);
    for job in jobs {
        let size = approx_size(&job);
        if !page.is_empty() && (bytes + size > PAGE_BYTES || page.len() == PAGE_JOBS) {
            pages.push(std::mem::take(&mut page));
            bytes = 0;
        }
        bytes += size;
        page.push(job);
    }
    pages.push(page);
    pages
}

/// Approximate size of a job in a request, in bytes.
fn approx_size(job: &dq_core::NewJob) -> usize {
    let headers: usize = job.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    let key = job.key.as_ref().map_or(0, |key| key.as_str().len());
    64 + job.queue.as_str().len() + key + headers + job.payload.len()
}

impl From<Receipt> for JobReceipt {
    fn from(receipt: Receipt) -> Self {
        Self(receipt.id, receipt.due)
    }
}

impl From<JobReceipt> for Receipt {
    fn from(JobReceipt(id, due): JobReceipt) -> Self {
        Self { id, due }
    }
}

/// An error for a value that this backend never returns, or that a newer version of `dq-core` has
/// added.
fn unknown_form(value: &dyn std::fmt::Debug) -> Error {
    Error::new(ErrorKind::Internal, format!("{value:?} has no form in a reply"))
        .remedy("use versions of dq-core and dq-rabbit that belong together")
}

impl TryFrom<dq_core::Scheduled> for Scheduled {
    type Error = Error;

    fn try_from(scheduled: dq_core::Scheduled) -> Result<Self> {
        Ok(match scheduled {
            dq_core::Scheduled::Created(receipt) => Self::Created(receipt.into()),
            dq_core::Scheduled::Replaced(receipt) => Self::Replaced(receipt.into()),
            dq_core::Scheduled::Kept(receipt) => Self::Kept(receipt.into()),
            dq_core::Scheduled::AlreadyRunning(receipt) => Self::AlreadyRunning(receipt.into()),
            dq_core::Scheduled::Ended(receipt) => Self::Ended(receipt.into()),
            unknown => return Err(unknown_form(&unknown)),
        })
    }
}

impl From<Scheduled> for dq_core::Scheduled {
    fn from(scheduled: Scheduled) -> Self {
        match scheduled {
            Scheduled::Created(receipt) => Self::Created(receipt.into()),
            Scheduled::Replaced(receipt) => Self::Replaced(receipt.into()),
            Scheduled::Kept(receipt) => Self::Kept(receipt.into()),
            Scheduled::AlreadyRunning(receipt) => Self::AlreadyRunning(receipt.into()),
            Scheduled::Ended(receipt) => Self::Ended(receipt.into()),
        }
    }
}

impl TryFrom<dq_core::Cancelled> for Cancellation {
    type Error = Error;

    fn try_from(cancelled: dq_core::Cancelled) -> Result<Self> {
        Ok(match cancelled {
            dq_core::Cancelled::Cancelled => Self::Cancelled,
            dq_core::Cancelled::NotFound => Self::NotFound,
            dq_core::Cancelled::AlreadyRunning => Self::AlreadyRunning,
            unknown => return Err(unknown_form(&unknown)),
        })
    }
}

impl From<Cancellation> for dq_core::Cancelled {
    fn from(cancelled: Cancellation) -> Self {
        match cancelled {
            Cancellation::Cancelled => Self::Cancelled,
            Cancellation::NotFound => Self::NotFound,
            Cancellation::AlreadyRunning => Self::AlreadyRunning,
        }
    }
}

impl TryFrom<dq_core::Rescheduled> for Rescheduled {
    type Error = Error;

    fn try_from(rescheduled: dq_core::Rescheduled) -> Result<Self> {
        Ok(match rescheduled {
            dq_core::Rescheduled::Moved(receipt) => Self::Moved(receipt.into()),
            dq_core::Rescheduled::NotFound => Self::NotFound,
            dq_core::Rescheduled::AlreadyRunning => Self::AlreadyRunning,
            unknown => return Err(unknown_form(&unknown)),
        })
    }
}

impl From<Rescheduled> for dq_core::Rescheduled {
    fn from(rescheduled: Rescheduled) -> Self {
        match rescheduled {
            Rescheduled::Moved(receipt) => Self::Moved(receipt.into()),
            Rescheduled::NotFound => Self::NotFound,
            Rescheduled::AlreadyRunning => Self::AlreadyRunning,
        }
    }
}

impl From<OperateReport> for Reply {
    fn from(report: OperateReport) -> Self {
        Self::Operated(report.affected, report.more)
    }
}
