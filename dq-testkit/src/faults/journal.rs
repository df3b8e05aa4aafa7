//! A recorder whose trace survives the process, as lines of JSON in a file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{
    Backend, Cancelled, ClaimParams, Claimed, DeadKind, DeadReason, Due, FencingToken, Job, JobId,
    JobKey, JobRef, Layer, Lease, LeasedJob, NewJob, OnRunning, QueueName, Receipt, Renewal,
    Renewed, Result, Scheduled, Settled, Settlement, Target, Timestamp, Verdict, async_trait,
};
use serde::{Deserialize, Serialize};

use crate::history::{History, HistoryEvent, Interval, ObservedCall};

/// A backend that records its calls and their answers in a file.
///
/// It records `schedule`, `cancel`, `claim`, `settle` and `renew`. Other calls make the trace
/// incomplete.
///
/// Times come from the system clock. [`read_journals`] can therefore merge the files of all
/// processes on one computer, as long as nobody sets that clock. The unfinished calls of a killed
/// process count as calls with a lost answer.
#[derive(Debug)]
pub struct Journal {
    inner: Arc<dyn Backend>,
    file: Mutex<File>,
    calls: AtomicU64,
}

/// Times are nanoseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Call { number: u64, at: u64, call: Call },
    Return { number: u64, at: u64, answer: Answer },
}

#[derive(Debug, Serialize, Deserialize)]
enum Call {
    Schedule(Vec<Scheduling>),
    Cancel(Vec<Cancelling>),
    Claim,
    Settle(Vec<Settling>),
    Renew(Vec<Renewing>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Scheduling {
    job: JobId,
    queue: QueueName,
    key: Option<JobKey>,
    detach: bool,
    /// Older journals lack it.
    #[serde(default)]
    remember: Duration,
    not_before: Timestamp,
    /// Older journals lack it.
    #[serde(default)]
    payload: Option<Bytes>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Cancelling {
    queue: QueueName,
    id: Option<JobId>,
    key: Option<JobKey>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Settling {
    job: JobId,
    queue: QueueName,
    token: u64,
    ending: Ending,
    due: Option<Timestamp>,
    /// The next step's payload.
    #[serde(default)]
    payload: Bytes,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Ending {
    Done,
    Skip,
    Retry,
    Again,
    Snooze,
    Dead,
    Release,
}

#[derive(Debug, Serialize, Deserialize)]
struct Renewing {
    job: JobId,
    queue: QueueName,
    token: u64,
    until: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The kind of result, and the receipt.
    Schedule(Vec<(String, JobId, Timestamp)>),
    /// The kind of result.
    Cancel(Vec<String>),
    Claim {
        now: Timestamp,
        jobs: Vec<Leased>,
    },
    Settle(Vec<bool>),
    /// When the held leases expire.
    Renew(Vec<Option<Timestamp>>),
    /// The kind of error.
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Leased {
    job: JobId,
    queue: QueueName,
    due: Timestamp,
    attempts: u32,
    token: u64,
    until: Timestamp,
    #[serde(default)]
    payload: Bytes,
}

fn nanos() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

fn millis(nanos: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX))
}

impl Journal {
    /// Wraps a backend, and creates the file.
    ///
    /// # Errors
    /// If the file exists or cannot be created.
    pub fn over(inner: Arc<dyn Backend>, path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        let file = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(Arc::new(Self { inner, file: Mutex::new(file), calls: AtomicU64::new(0) }))
    }

    /// With one write, which a kill cannot split.
    fn write(&self, line: &Line) {
        let mut text = serde_json::to_vec(line).expect("a line is JSON");
        text.push(b'\n');
        // An unrecorded call is no evidence, so stop here.
        lock(&self.file).write_all(&text).expect("the journal can be written");
    }

    fn begin(&self, call: impl FnOnce(Timestamp) -> Call) -> u64 {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let at = nanos();
        self.write(&Line::Call { number, at, call: call(millis(at)) });
        number
    }

    fn end<T>(&self, number: u64, result: &Result<T>, answer: impl FnOnce(&T) -> Answer) {
        let at = nanos();
        let answer = match result {
            Ok(value) => answer(value),
            Err(error) => Answer::Failed(error.kind().to_string()),
        };
        self.write(&Line::Return { number, at, answer });
    }
}

/// The first word in the `Debug` form.
fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split('(').next().unwrap_or_default().to_owned()
}

#[async_trait]
impl Layer for Journal {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let number = self.begin(|now| {
            let job = |job: &NewJob| Scheduling {
                job: job.id,
                queue: job.queue.clone(),
                key: job.key.clone(),
                detach: job.on_running == OnRunning::Detach,
                remember: job.remember,
                not_before: job.due.resolve(now),
                payload: Some(job.payload.clone()),
            };
            Call::Schedule(jobs.iter().map(job).collect())
        });
        let result = self.inner.schedule(jobs).await;
        self.end(number, &result, |answers| {
            let answer = |it: &Scheduled| (variant(it), it.id(), it.due());
            Answer::Schedule(answers.iter().map(answer).collect())
        });
        result
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let number = self.begin(|_| {
            let job = |job: &JobRef| {
                let (id, key) = match &job.target {
                    Target::Id(id) => (Some(*id), None),
                    Target::Key(key) => (None, Some(key.clone())),
                };
                Cancelling { queue: job.queue.clone(), id, key }
            };
            Call::Cancel(jobs.iter().map(job).collect())
        });
        let result = self.inner.cancel(jobs).await;
        self.end(number, &result, |answers| Answer::Cancel(answers.iter().map(variant).collect()));
        result
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let number = self.begin(|_| Call::Claim);
        let result = self.inner.claim(params).await;
        self.end(number, &result, |claimed| {
            let job = |leased: &LeasedJob| Leased {
                job: leased.job.id,
                queue: leased.job.queue.clone(),
                due: leased.job.due,
                attempts: leased.job.attempts,
                token: leased.token.0,
                until: leased.leased_until,
                payload: leased.job.payload.clone(),
            };
            Answer::Claim { now: claimed.now, jobs: claimed.jobs.iter().map(job).collect() }
        });
        result
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let number = self.begin(|now| {
            let settling = |settlement: &Settlement| {
                let (ending, due) = match &settlement.verdict {
                    Verdict::Skip { .. } => (Ending::Skip, None),
                    Verdict::Retry { due, .. } => (Ending::Retry, Some(due)),
                    Verdict::Again { due, .. } => (Ending::Again, Some(due)),
                    Verdict::Snooze(due) => (Ending::Snooze, Some(due)),
                    Verdict::Dead { .. } => (Ending::Dead, None),
                    Verdict::Release { .. } => (Ending::Release, None),
                    _ => (Ending::Done, None),
                };
                let Lease { queue, job, token } = settlement.lease.clone();
                let due = due.map(|due| due.resolve(now));
                let payload = match &settlement.verdict {
                    Verdict::Again { payload, .. } => payload.clone(),
                    _ => Bytes::new(),
                };
                Settling { job, queue, token: token.0, ending, due, payload }
            };
            Call::Settle(settlements.iter().map(settling).collect())
        });
        let result = self.inner.settle(settlements).await;
        self.end(number, &result, |answers| {
            Answer::Settle(answers.iter().map(|answer| *answer == Settled::Accepted).collect())
        });
        result
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let number = self.begin(|now| {
            let renewing = |renewal: &Renewal| {
                let Lease { queue, job, token } = renewal.lease.clone();
                Renewing { job, queue, token: token.0, until: now + renewal.lease_for }
            };
            Call::Renew(renewals.iter().map(renewing).collect())
        });
        let result = self.inner.renew(renewals).await;
        self.end(number, &result, |answers| {
            let until = |answer: &Renewed| match answer {
                Renewed::Until(until) => Some(*until),
                _ => None,
            };
            Answer::Renew(answers.iter().map(until).collect())
        });
        result
    }
}

/// When a claim's leases begin, for the checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseBegin {
    /// At the time in the answer: the store reads its clock when it grants the leases.
    Answered,
    /// When the call returns. A store that decides by its log answers with the time at which the
    /// runner made the claim. After a broken connection, the claim may reach the log only when an
    /// earlier lease has expired.
    Returned,
}

/// Reads the trace from all `jsonl` files in a directory.
///
/// Ignores an incomplete last line.
///
/// # Errors
/// If a file cannot be read, and `InvalidData` for a line that no [`Journal`] wrote.
pub fn read_journals(directory: impl AsRef<Path>, begin: LeaseBegin) -> io::Result<History> {
    let mut events = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = fs::read_to_string(&path)?;
            let complete = text.rfind('\n').map_or("", |end| &text[..end]);
            read_journal(complete, begin, &mut events).map_err(|problem| {
                let what = format!("{}: {problem}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?;
        }
    }
    Ok(History::new(events))
}

fn read_journal(
    text: &str,
    begin: LeaseBegin,
    events: &mut Vec<HistoryEvent>,
) -> std::result::Result<(), String> {
    let mut open: BTreeMap<u64, (u64, Call)> = BTreeMap::new();
    let interval = |at, returned| Interval {
        invoked: at,
        returned,
        at: millis(at),
        returned_at: millis(returned),
    };
    for line in text.lines() {
        match serde_json::from_str(line).map_err(|error| format!("{error} in {line:?}"))? {
            Line::Call { number, at, call } => {
                open.insert(number, (at, call));
            }
            Line::Return { number, at, answer } => {
                let Some((invoked, call)) = open.remove(&number) else {
                    return Err(format!("an answer to no call: {line:?}"));
                };
                let mut calls = observed(call, Some(answer))
                    .ok_or_else(|| format!("an answer to another call: {line:?}"))?;
                if begin == LeaseBegin::Returned {
                    for call in &mut calls {
                        if let ObservedCall::Claim { now, .. } = call {
                            *now = (*now).max(millis(at));
                        }
                    }
                }
                let interval = interval(invoked, at);
                events.extend(calls.into_iter().map(|call| HistoryEvent { interval, call }));
            }
        }
    }
    // Unanswered calls may take effect at any later time.
    for (invoked, call) in open.into_values() {
        let interval = interval(invoked, u64::MAX);
        let calls = observed(call, None).unwrap_or_default();
        events.extend(calls.into_iter().map(|call| HistoryEvent { interval, call }));
    }
    Ok(())
}

/// `None` if the answer belongs to another kind of call.
fn observed(call: Call, answer: Option<Answer>) -> Option<Vec<ObservedCall>> {
    let answer = answer.filter(|answer| !matches!(answer, Answer::Failed(_)));
    Some(match (call, answer) {
        (Call::Schedule(jobs), answer) => {
            let answers = match answer {
                Some(Answer::Schedule(answers)) => answers.into_iter().map(scheduled).collect(),
                None => vec![None; jobs.len()],
                _ => return None,
            };
            let event = |(job, answer): (Scheduling, _)| ObservedCall::Schedule {
                job: job.job,
                queue: job.queue,
                key: job.key,
                detach: job.detach,
                remember: job.remember,
                not_before: job.not_before,
                payload: job.payload,
                answer,
            };
            jobs.into_iter().zip(answers).map(event).collect()
        }
        (Call::Cancel(jobs), answer) => {
            let answers = match answer {
                Some(Answer::Cancel(answers)) => answers.iter().map(|it| cancelled(it)).collect(),
                None => vec![None; jobs.len()],
                _ => return None,
            };
            let event = |(job, answer): (Cancelling, _)| {
                let target = job.key.map(Target::Key).or(job.id.map(Target::Id))?;
                Some(ObservedCall::Cancel { job: JobRef::new(job.queue, target), answer })
            };
            jobs.into_iter().zip(answers).map(event).collect::<Option<_>>()?
        }
        (Call::Claim, Some(Answer::Claim { now, jobs })) => {
            let event = |leased: Leased| {
                let mut job = Job::new(
                    leased.job,
                    leased.queue,
                    leased.due,
                    Timestamp::EPOCH,
                    leased.payload,
                );
                job.attempts = leased.attempts;
                let leased = LeasedJob::new(job, FencingToken(leased.token), leased.until);
                ObservedCall::Claim { leased: Box::new(leased), now }
            };
            jobs.into_iter().map(event).collect()
        }
        (Call::Claim, None) => vec![ObservedCall::FailedClaim],
        (Call::Settle(settlements), answer) => {
            let answers = match answer {
                Some(Answer::Settle(answers)) => answers.into_iter().map(Some).collect(),
                None => vec![None; settlements.len()],
                _ => return None,
            };
            let event = |(settling, accepted): (Settling, Option<bool>)| {
                let answer = accepted.map(|is| if is { Settled::Accepted } else { Settled::Stale });
                ObservedCall::Settle { settlement: settlement(settling), answer }
            };
            settlements.into_iter().zip(answers).map(event).collect()
        }
        (Call::Renew(renewals), answer) => {
            let answers = match answer {
                Some(Answer::Renew(answers)) => answers.into_iter().map(Some).collect(),
                None => vec![None; renewals.len()],
                _ => return None,
            };
            let event = |(renewing, answer): (Renewing, Option<Option<Timestamp>>)| {
                let Renewing { job, queue, token, until } = renewing;
                let lease = Lease { queue, job, token: FencingToken(token) };
                let answer = answer.map(|until| until.map_or(Renewed::Lost, Renewed::Until));
                ObservedCall::Renew { lease, until, answer }
            };
            renewals.into_iter().zip(answers).map(event).collect()
        }
        (Call::Claim, Some(_)) => return None,
    })
}

/// An unknown kind counts as a lost answer (`None`).
fn scheduled((kind, id, due): (String, JobId, Timestamp)) -> Option<Scheduled> {
    let receipt = Receipt { id, due };
    Some(match kind.as_str() {
        "Created" => Scheduled::Created(receipt),
        "Replaced" => Scheduled::Replaced(receipt),
        "Kept" => Scheduled::Kept(receipt),
        "AlreadyRunning" => Scheduled::AlreadyRunning(receipt),
        "Ended" => Scheduled::Ended(receipt),
        _ => return None,
    })
}

/// Like [`scheduled`].
fn cancelled(kind: &str) -> Option<Cancelled> {
    Some(match kind {
        "Cancelled" => Cancelled::Cancelled,
        "NotFound" => Cancelled::NotFound,
        "AlreadyRunning" => Cancelled::AlreadyRunning,
        _ => return None,
    })
}

fn settlement(Settling { job, queue, token, ending, due, payload }: Settling) -> Settlement {
    let due = Due::At(due.unwrap_or(Timestamp::EPOCH));
    let verdict = match ending {
        Ending::Done => Verdict::Done,
        Ending::Skip => Verdict::skip(""),
        Ending::Retry => Verdict::retry(due, ""),
        Ending::Again => Verdict::Again { due, payload },
        Ending::Snooze => Verdict::Snooze(due),
        Ending::Dead => {
            Verdict::Dead { reason: DeadReason::new(DeadKind::Rejected, ""), failed: true }
        }
        // The checked promises do not depend on `started`.
        Ending::Release => Verdict::Release { started: true },
    };
    Settlement::new(Lease { queue, job, token: FencingToken(token) }, verdict)
}
