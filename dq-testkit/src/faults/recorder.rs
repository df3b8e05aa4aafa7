//! What clients saw, written down while they see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Claimed, Clock, Due, JobId, JobRef, JobState,
    NewJob, OperateReport, Operation, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled,
    Settled, Settlement, Timestamp, async_trait,
};

use super::layer::{Layer, Layered};
use crate::history::{Breach, Event, History, Intervention, Span, What};

/// A backend that writes down each call and its answer.
#[derive(Debug)]
pub struct Recorder {
    inner: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    order: AtomicU64,
    events: Mutex<Vec<Event>>,
}

/// The beginning of a call.
#[derive(Debug, Clone, Copy)]
struct Began {
    order: u64,
    at: Timestamp,
}

impl Recorder {
    /// Wraps a backend that goes by this clock.
    #[must_use]
    pub fn over(inner: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Arc<Layered<Self>> {
        let (order, events) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Layered(Self { inner, clock, order, events }))
    }

    /// What was seen so far.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(self.lock().clone())
    }

    /// Judges what was seen so far, with what is in the store now. No call may be in flight.
    ///
    /// # Errors
    /// The store cannot be listed.
    pub async fn judge(&self) -> Result<Vec<Breach>> {
        let mut remaining = Vec::new();
        for stats in self.inner.stats(&[]).await? {
            for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
                let mut after = None;
                loop {
                    let page = BrowseParams { queue: &stats.queue, state, after, limit: 1_000 };
                    let page = self.inner.browse(page).await?;
                    remaining.extend(page.jobs.iter().map(|view| view.job.id));
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(self.history().judge(&remaining))
    }

    fn began(&self) -> Began {
        Began { order: self.order.fetch_add(1, Ordering::AcqRel), at: self.clock.now() }
    }

    /// Writes down what one call was about.
    fn ended(&self, began: Began, seen: impl IntoIterator<Item = What>) {
        let ended = self.order.fetch_add(1, Ordering::AcqRel);
        let span = Span { began: began.order, ended, at: began.at };
        self.lock().extend(seen.into_iter().map(|what| Event { span, what }));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        // Events are only added, so a panic elsewhere leaves the list whole.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The item-by-item answers of a call, or for each of `count` items that the answer is not known.
fn each<T: Copy>(answer: &Result<Vec<T>>, count: usize) -> Vec<Option<T>> {
    match answer {
        Ok(answers) => answers.iter().copied().map(Some).collect(),
        Err(_) => vec![None; count],
    }
}

/// No earlier than this, if the call began at `at`.
fn not_before(due: Due, at: Timestamp) -> Timestamp {
    due.resolve(at)
}

#[async_trait]
impl Layer for Recorder {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let asked: Vec<_> =
            jobs.iter().map(|job| (job.id, job.queue.clone(), job.key.clone(), job.due)).collect();
        let began = self.began();
        let answer = self.inner.schedule(jobs).await;
        let answers = each(&answer, asked.len());
        let seen = asked.into_iter().zip(answers).map(|((job, queue, key, due), answer)| {
            What::Scheduled { job, queue, key, not_before: not_before(due, began.at), answer }
        });
        self.ended(began, seen);
        answer
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let began = self.began();
        let answer = self.inner.cancel(jobs).await;
        let seen = jobs.iter().zip(each(&answer, jobs.len()));
        self.ended(began, seen.map(|(job, answer)| What::Cancelled { job: job.clone(), answer }));
        answer
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let began = self.began();
        let answer = self.inner.reschedule(moves).await;
        let seen = moves.iter().zip(each(&answer, moves.len())).map(|(wish, answer)| What::Moved {
            job: wish.job.clone(),
            not_before: not_before(wish.due, began.at),
            answer,
        });
        self.ended(began, seen);
        answer
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let began = self.began();
        let answer = self.inner.claim(params).await;
        let seen = match &answer {
            Ok(claimed) => claimed
                .jobs
                .iter()
                .map(|leased| What::Started { leased: Box::new(leased.clone()), now: claimed.now })
                .collect(),
            Err(_) => vec![What::ClaimFailed],
        };
        self.ended(began, seen);
        answer
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let began = self.began();
        let answer = self.inner.settle(settlements).await;
        let seen = settlements
            .iter()
            .zip(each(&answer, settlements.len()))
            .map(|(settlement, answer)| What::Finished { settlement: settlement.clone(), answer });
        self.ended(began, seen);
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let began = self.began();
        let answer = self.inner.renew(renewals).await;
        let seen = renewals.iter().zip(each(&answer, renewals.len())).map(|(renewal, answer)| {
            What::Renewed {
                lease: renewal.lease.clone(),
                until: began.at + renewal.lease_for,
                answer,
            }
        });
        self.ended(began, seen);
        answer
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let began = self.began();
        let answer = self.inner.operate(operation).await;
        let queue = operation.queue().clone();
        let ids = |jobs: Option<&[JobId]>| jobs.map(<[JobId]>::to_vec);
        let intervention = match operation {
            Operation::Replay { jobs, due, .. } => Some(Intervention::Replay {
                jobs: ids(jobs),
                not_before: not_before(due, began.at),
            }),
            Operation::Remove { jobs, .. } => Some(Intervention::Remove { jobs: ids(jobs) }),
            Operation::Purge { .. } => Some(Intervention::Purge),
            // A pause moves no job.
            _ => None,
        };
        self.ended(began, intervention.map(|what| What::Operated { queue, what }));
        answer
    }
}
