use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Claimed, Clock, JobRef, JobState, Layer, NewJob,
    OnRunning, OperateReport, Operation, Renewal, Renewed, Reschedule, Rescheduled, Result,
    Scheduled, Settled, Settlement, Timestamp, async_trait,
};

use crate::history::{History, HistoryEvent, Interval, ObservedCall, OperatorAction, Violation};

/// A backend that records each call and its answer.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    /// Orders invocations and returns.
    next_position: AtomicU64,
    events: Mutex<Vec<HistoryEvent>>,
}

#[derive(Debug, Clone, Copy)]
struct Invocation {
    position: u64,
    at: Timestamp,
}

impl Recorder {
    /// Wraps a backend whose store uses this clock.
    #[must_use]
    pub fn over(inner: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (next_position, events) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Self { inner, clock, next_position, events })
    }

    /// Returns the calls recorded so far.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(lock(&self.events).clone())
    }

    /// Checks the recorded calls against the jobs in the store.
    ///
    /// No call may be in flight.
    ///
    /// # Errors
    /// The same as for [`Backend::stats`] and [`Backend::browse`].
    pub async fn check_history(&self) -> Result<Vec<Violation>> {
        let mut remaining = Vec::new();
        for stats in self.inner.stats(&[]).await? {
            for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
                let mut after = None;
                loop {
                    let page = BrowseParams::new(&stats.queue, state)
                        .after(after)
                        .limit(1_000)
                        .payloads(true);
                    let page = self.inner.browse(page).await?;
                    remaining.extend(page.jobs.iter().map(|view| view.job.id));
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(self.history().check(&remaining))
    }

    fn invoke(&self) -> Invocation {
        let position = self.next_position.fetch_add(1, Ordering::AcqRel);
        Invocation { position, at: self.clock.now() }
    }

    /// One event per job.
    fn record(&self, invocation: Invocation, calls: impl IntoIterator<Item = ObservedCall>) {
        let returned = self.next_position.fetch_add(1, Ordering::AcqRel);
        let Invocation { position, at } = invocation;
        let interval = Interval { invoked: position, returned, at, returned_at: self.clock.now() };
        lock(&self.events).extend(calls.into_iter().map(|call| HistoryEvent { interval, call }));
    }
}

/// `None` for all items if the call failed.
fn answers_by_item<T: Copy>(answer: &Result<Vec<T>>, count: usize) -> Vec<Option<T>> {
    match answer {
        Ok(answers) => answers.iter().copied().map(Some).collect(),
        Err(_) => vec![None; count],
    }
}

#[async_trait]
impl Layer for Recorder {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let asked: Vec<_> = jobs
            .iter()
            .map(|job| {
                let detach = job.on_running == OnRunning::Detach;
                let (queue, key, payload) =
                    (job.queue.clone(), job.key.clone(), job.payload.clone());
                (job.id, queue, key, detach, job.remember, job.due, payload)
            })
            .collect();
        let invocation = self.invoke();
        let answer = self.inner.schedule(jobs).await;
        let answers = answers_by_item(&answer, asked.len());
        let calls = asked.into_iter().zip(answers).map(
            |((job, queue, key, detach, remember, due, payload), answer)| ObservedCall::Schedule {
                job,
                queue,
                key,
                detach,
                remember,
                not_before: due.resolve(invocation.at),
                payload: Some(payload),
                answer,
            },
        );
        self.record(invocation, calls);
        answer
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let invocation = self.invoke();
        let answer = self.inner.cancel(jobs).await;
        let calls = jobs.iter().zip(answers_by_item(&answer, jobs.len()));
        self.record(
            invocation,
            calls.map(|(job, answer)| ObservedCall::Cancel { job: job.clone(), answer }),
        );
        answer
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let invocation = self.invoke();
        let answer = self.inner.reschedule(moves).await;
        let calls =
            moves.iter().zip(answers_by_item(&answer, moves.len())).map(|(change, answer)| {
                ObservedCall::Reschedule {
                    job: change.job.clone(),
                    not_before: change.due.resolve(invocation.at),
                    answer,
                }
            });
        self.record(invocation, calls);
        answer
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let invocation = self.invoke();
        let answer = self.inner.claim(params).await;
        let calls = match &answer {
            Ok(claimed) => claimed
                .jobs
                .iter()
                .map(|leased| ObservedCall::Claim {
                    leased: Box::new(leased.clone()),
                    now: claimed.now,
                })
                .collect(),
            Err(_) => vec![ObservedCall::FailedClaim],
        };
        self.record(invocation, calls);
        answer
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let invocation = self.invoke();
        let answer = self.inner.settle(settlements).await;
        let calls = settlements.iter().zip(answers_by_item(&answer, settlements.len())).map(
            |(settlement, answer)| ObservedCall::Settle { settlement: settlement.clone(), answer },
        );
        self.record(invocation, calls);
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let invocation = self.invoke();
        let answer = self.inner.renew(renewals).await;
        let calls = renewals.iter().zip(answers_by_item(&answer, renewals.len())).map(
            |(renewal, answer)| ObservedCall::Renew {
                lease: renewal.lease.clone(),
                until: invocation.at + renewal.lease_for,
                answer,
            },
        );
        self.record(invocation, calls);
        answer
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let invocation = self.invoke();
        let answer = self.inner.operate(operation).await;
        let queue = operation.queue().clone();
        let action = match operation {
            Operation::Replay { jobs, due, .. } => Some(OperatorAction::Replay {
                jobs: jobs.to_vec(),
                not_before: due.resolve(invocation.at),
            }),
            Operation::Remove { jobs, .. } => Some(OperatorAction::Remove { jobs: jobs.to_vec() }),
            Operation::Purge { .. } => Some(OperatorAction::Purge),
            // Pauses change no job.
            _ => None,
        };
        self.record(invocation, action.map(|action| ObservedCall::Operate { queue, action }));
        answer
    }
}
