//! Stores the jobs of tickers that run at the same time in common calls.
//!
//! At midnight, thousands of tickers run at once, and a call for each would take long on most
//! stores. There is no timer: what arrives during one call is in the next one.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::{Semaphore, oneshot};

use crate::backend::Scheduled;
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::NewJob;
use crate::sync::lock;

/// Maximum number of calls at once. Two, so that the store need not wait for the next one.
const CALLS: usize = 2;

/// A batch is complete when it has this many jobs, or payloads of this many bytes.
const MAX_JOBS: usize = 100;
const MAX_BYTES: usize = 256 * 1024;

/// Schedules the jobs of tickers.
#[derive(Debug)]
pub(super) struct Batches {
    dq: Dq,
    waiting: Mutex<VecDeque<Request>>,
    calls: Semaphore,
}

/// The jobs of one ticker.
#[derive(Debug)]
struct Request {
    jobs: Vec<NewJob>,
    answer: oneshot::Sender<Result<Vec<Scheduled>>>,
}

impl Batches {
    pub(super) fn new(dq: &Dq) -> Self {
        Self { dq: dq.clone(), waiting: Mutex::default(), calls: Semaphore::new(CALLS) }
    }

    /// Schedules the jobs of one ticker.
    ///
    /// If this is dropped while it makes a call for several tickers, the others get an error and
    /// run again, which schedules nothing twice.
    pub(super) async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let (answer, mut answered) = oneshot::channel();
        lock(&self.waiting).push_back(Request { jobs, answer });
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.unwrap_or_else(|_| Err(interrupted())),
                permit = self.calls.acquire() => {
                    // The other tickers that were claimed together add their jobs before.
                    tokio::task::yield_now().await;
                    let batch = self.take();
                    if batch.is_empty() {
                        // The jobs are in a call that another ticker makes.
                        drop(permit);
                        return answered.await.unwrap_or_else(|_| Err(interrupted()));
                    }
                    self.call(batch).await;
                }
            }
        }
    }

    /// The next batch; its last ticker may exceed the limits. Leaves out tickers that have stopped.
    fn take(&self) -> Vec<Request> {
        let mut waiting = lock(&self.waiting);
        let mut batch = Vec::new();
        let (mut jobs, mut bytes) = (0, 0);
        while jobs < MAX_JOBS && bytes < MAX_BYTES {
            let Some(request) = waiting.pop_front() else { break };
            if request.answer.is_closed() {
                continue;
            }
            jobs += request.jobs.len();
            bytes += request.jobs.iter().map(|job| job.payload.len()).sum::<usize>();
            batch.push(request);
        }
        batch
    }

    async fn call(&self, batch: Vec<Request>) {
        let jobs = batch.iter().flat_map(|request| request.jobs.iter().cloned()).collect();
        match schedule(&self.dq, jobs).await {
            Ok(scheduled) => {
                let mut scheduled = scheduled.into_iter();
                for Request { jobs, answer } in batch {
                    // The ticker may have stopped.
                    let _ = answer.send(Ok(scheduled.by_ref().take(jobs.len()).collect()));
                }
            }
            // The jobs of one ticker that are refused, or too large for the store, must not keep those of the
            // others from running.
            Err(error) if batch.len() > 1 && !fails_for_all(&error) => {
                let mut failure = None;
                for Request { jobs, answer } in batch {
                    let result = match &failure {
                        None => schedule(&self.dq, jobs).await,
                        Some(error) => Err(Error::clone(error)),
                    };
                    failure = result.as_ref().err().filter(|error| fails_for_all(error)).cloned();
                    let _ = answer.send(result);
                }
            }
            Err(error) => {
                for Request { answer, .. } in batch {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}

/// Schedules these jobs in calls of limited size.
pub(super) async fn schedule(dq: &Dq, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
    let max = dq.shared().limits.bulk.max(1);
    let mut scheduled = Vec::with_capacity(jobs.len());
    while !jobs.is_empty() {
        let rest = jobs.split_off(jobs.len().min(max));
        scheduled.extend(dq.shared().stores.schedule(std::mem::replace(&mut jobs, rest)).await?);
    }
    Ok(scheduled)
}

/// Whether the call failed for a reason that is the same for each of its jobs.
fn fails_for_all(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable
            | ErrorKind::OutcomeUnknown
            | ErrorKind::Closed
            | ErrorKind::Incompatible
    )
}

fn interrupted() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the call that several schedules share was interrupted")
}
