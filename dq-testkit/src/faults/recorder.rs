//! A backend that records its calls, in memory or in a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{
    Backend, Cancelled, ClaimParams, Claimed, Clock, Due, Headers, JobRef, Layer, LeasedJob,
    NewJob, OnRunning, OperateReport, Operation, Renewal, Renewed, Reschedule, Rescheduled, Result,
    Scheduled, Settled, Settlement, Target, Timestamp, Verdict, async_trait,
};

use super::remaining::remaining;
use super::trace_file::{self, Line};
use crate::trace::{
    Interval, ObservedCall, ObservedTarget, ObservedVerdict, OperatorAction, ScheduleAnswer, Trace,
    TraceEvent, Violation,
};

/// A backend that records each call and its answer.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn Backend>,
    record: Record,
    /// The next position of an invocation or return in memory, or the next call's number in a file.
    next: AtomicU64,
}

#[derive(Debug)]
enum Record {
    Memory { clock: Arc<dyn Clock>, events: Mutex<Vec<TraceEvent>> },
    File(Mutex<File>),
}

/// A call in flight.
struct Invocation {
    /// Its position in memory, or its number in a file.
    number: u64,
    at: Timestamp,
    /// Without answers until the call returns.
    calls: Vec<ObservedCall>,
}

impl Recorder {
    /// Wraps a backend whose store uses this clock.
    #[must_use]
    pub fn over(inner: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let record = Record::Memory { clock, events: Mutex::default() };
        Arc::new(Self { inner, record, next: AtomicU64::new(0) })
    }

    /// Wraps a backend, and records in a new file.
    ///
    /// [`read_traces`](super::read_traces) merges the files of all processes on one computer, whose
    /// system clock nobody may set. The unfinished calls of a killed process count as calls with a
    /// lost answer.
    ///
    /// # Errors
    /// If the file exists or cannot be created.
    pub fn in_file(inner: Arc<dyn Backend>, path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        let file = OpenOptions::new().create_new(true).append(true).open(path)?;
        let record = Record::File(Mutex::new(file));
        Ok(Arc::new(Self { inner, record, next: AtomicU64::new(0) }))
    }

    /// Returns the calls that are recorded in memory so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        match &self.record {
            Record::Memory { events, .. } => Trace::new(lock(events).clone()),
            Record::File(_) => Trace::default(),
        }
    }

    /// Checks the recorded calls against the jobs in the store.
    ///
    /// No call may be in flight.
    ///
    /// # Errors
    /// The same as for [`remaining`].
    pub async fn check_trace(&self) -> Result<Vec<Violation>> {
        let remaining = remaining(&*self.inner).await?;
        Ok(self.trace().check(&remaining))
    }

    /// Makes a call and records it. `observe` returns its events without answers, given the time of
    /// the invocation, and `add_answers` completes them.
    async fn record<T>(
        &self,
        observe: impl FnOnce(Timestamp) -> Vec<ObservedCall>,
        call: impl Future<Output = Result<T>>,
        add_answers: impl FnOnce(&mut Vec<ObservedCall>, &T),
    ) -> Result<T> {
        let mut invocation = self.begin(observe);
        let result = call.await;
        if let Ok(answer) = &result {
            add_answers(&mut invocation.calls, answer);
        }
        self.end(invocation);
        result
    }

    fn begin(&self, observe: impl FnOnce(Timestamp) -> Vec<ObservedCall>) -> Invocation {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        match &self.record {
            Record::Memory { clock, .. } => {
                let at = clock.now();
                Invocation { number, at, calls: observe(at) }
            }
            Record::File(file) => {
                let nanos = trace_file::nanos();
                let at = trace_file::millis(nanos);
                let calls = observe(at);
                trace_file::write(file, &Line::Call { number, at: nanos, calls: &calls });
                Invocation { number, at, calls }
            }
        }
    }

    fn end(&self, Invocation { number, at, calls }: Invocation) {
        match &self.record {
            Record::Memory { clock, events } => {
                let returned = self.next.fetch_add(1, Ordering::AcqRel);
                let interval = Interval { invoked: number, returned, at, returned_at: clock.now() };
                let new = calls.into_iter().map(|call| TraceEvent { interval, call });
                lock(events).extend(new);
            }
            Record::File(file) => {
                let at = trace_file::nanos();
                trace_file::write(file, &Line::Return { number, at, calls: &calls });
            }
        }
    }
}

fn target(job: &JobRef) -> ObservedTarget {
    match &job.target {
        Target::Id(id) => ObservedTarget::Id(*id),
        Target::Key(key) => ObservedTarget::Key(job.queue.clone(), key.clone()),
    }
}

fn verdict(verdict: &Verdict, now: Timestamp) -> ObservedVerdict {
    let at = |due: &Due| due.resolve(now);
    match verdict {
        Verdict::Skip { .. } => ObservedVerdict::Skip,
        Verdict::Retry { due, .. } => ObservedVerdict::Retry(at(due)),
        Verdict::Again { due, payload } => ObservedVerdict::Again(at(due), payload.clone()),
        Verdict::Snooze(due) | Verdict::Throttle(due) => ObservedVerdict::Snooze(at(due)),
        Verdict::Dead { .. } => ObservedVerdict::Dead,
        Verdict::Release { .. } => ObservedVerdict::Release,
        _ => ObservedVerdict::Done,
    }
}

/// Sets the answer field of each event.
macro_rules! answer_each {
    ($variant:ident { $field:ident } = |$answer:ident| $value:expr) => {
        |calls: &mut Vec<ObservedCall>, answers: &Vec<_>| {
            for (call, $answer) in calls.iter_mut().zip(answers) {
                if let ObservedCall::$variant { $field, .. } = call {
                    *$field = Some($value);
                }
            }
        }
    };
}

#[async_trait]
impl Layer for Recorder {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let copies = jobs.clone();
        let observe = |now| {
            let call = |job: NewJob| ObservedCall::Schedule {
                job: job.id,
                queue: job.queue,
                key: job.key,
                group: job.headers.get(Headers::GROUP).map(str::to_owned),
                detach: job.on_running == OnRunning::Detach,
                remember: job.remember,
                not_before: job.due.resolve(now),
                payload: Some(job.payload),
                answer: None,
            };
            copies.into_iter().map(call).collect()
        };
        let add_answers = answer_each!(
            Schedule { answer } = |scheduled| match scheduled {
                Scheduled::Created(_) => ScheduleAnswer::Created,
                Scheduled::Replaced(_) => ScheduleAnswer::Replaced,
                Scheduled::Ended(_) => ScheduleAnswer::Ended,
                _ => ScheduleAnswer::Kept,
            }
        );
        self.record(observe, self.inner.schedule(jobs), add_answers).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let call = |job| ObservedCall::Cancel { job: target(job), cancelled: None };
        let add_answers =
            answer_each!(Cancel { cancelled } = |answer| *answer == Cancelled::Cancelled);
        self.record(|_| jobs.iter().map(call).collect(), self.inner.cancel(jobs), add_answers).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let observe = |now| {
            let call = |change: &Reschedule| ObservedCall::Reschedule {
                job: target(&change.job),
                not_before: change.due.resolve(now),
                moved: None,
            };
            moves.iter().map(call).collect()
        };
        let add_answers = answer_each!(
            Reschedule { moved } = |answer| match answer {
                Rescheduled::Moved(receipt) => Some(receipt.id),
                _ => None,
            }
        );
        self.record(observe, self.inner.reschedule(moves), add_answers).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let add_answers = |calls: &mut Vec<ObservedCall>, claimed: &Claimed| {
            let call = |leased: &LeasedJob| ObservedCall::Claim {
                now: claimed.now,
                job: leased.job.id,
                due: leased.job.due,
                attempts: leased.job.attempts,
                payload: leased.job.payload.clone(),
                token: leased.token.0,
                until: leased.leased_until,
            };
            *calls = claimed.jobs.iter().map(call).collect();
        };
        self.record(|_| vec![ObservedCall::FailedClaim], self.inner.claim(params), add_answers)
            .await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let observe = |now| {
            let call = |settlement: &Settlement| ObservedCall::Settle {
                job: settlement.lease.job,
                token: settlement.lease.token.0,
                verdict: verdict(&settlement.verdict, now),
                accepted: None,
            };
            settlements.iter().map(call).collect()
        };
        let add_answers = answer_each!(Settle { accepted } = |answer| *answer == Settled::Accepted);
        self.record(observe, self.inner.settle(settlements), add_answers).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let observe = |now: Timestamp| {
            let call = |renewal: &Renewal| ObservedCall::Renew {
                job: renewal.lease.job,
                token: renewal.lease.token.0,
                until: now + renewal.lease_for,
                held: None,
            };
            renewals.iter().map(call).collect()
        };
        let add_answers = |calls: &mut Vec<ObservedCall>, answers: &Vec<Renewed>| {
            for (call, answer) in calls.iter_mut().zip(answers) {
                let ObservedCall::Renew { until, held, .. } = call else { continue };
                *held = Some(matches!(answer, Renewed::Until(_)));
                if let Renewed::Until(renewed) = answer {
                    *until = *renewed;
                }
            }
        };
        self.record(observe, self.inner.renew(renewals), add_answers).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let observe = |now| {
            let action = match operation {
                Operation::Replay { jobs, due, .. } => {
                    OperatorAction::Replay { jobs: jobs.to_vec(), not_before: due.resolve(now) }
                }
                Operation::Remove { jobs, .. } => OperatorAction::Remove { jobs: jobs.to_vec() },
                Operation::Purge { .. } => OperatorAction::Purge,
                // Pauses change no job.
                _ => return Vec::new(),
            };
            vec![ObservedCall::Operate { queue: operation.queue().clone(), action }]
        };
        self.record(observe, self.inner.operate(operation), |_, _| ()).await
    }
}
