//! Joins the store calls of schedule jobs that run at the same time.
//!
//! At midnight thousands of them run at once, and one call each would take long on most stores.
//! There is no timer: jobs that arrive during one call go into the next.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::{Semaphore, oneshot};

use crate::backend::Scheduled;
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::NewJob;
use crate::sync::lock;

/// Two concurrent calls, so that the store need not wait for the next one.
const CALLS: usize = 2;

/// A batch is complete at this many jobs or payload bytes.
const MAX_JOBS: usize = 100;
const MAX_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Batches {
    dq: Dq,
    waiting: Mutex<VecDeque<Request>>,
    calls: Semaphore,
}

#[derive(Debug)]
struct Request {
    jobs: Vec<NewJob>,
    answer: oneshot::Sender<Result<Vec<Scheduled>>>,
}

impl Batches {
    pub(super) fn new(dq: &Dq) -> Self {
        Self { dq: dq.clone(), waiting: Mutex::default(), calls: Semaphore::new(CALLS) }
    }

    /// Schedules jobs in a call shared with others.
    ///
    /// If this is dropped during a shared call, other schedules in the call fail. They run again,
    /// which schedules nothing twice.
    pub(super) async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let (answer, mut answered) = oneshot::channel();
        lock(&self.waiting).push_back(Request { jobs, answer });
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.unwrap_or_else(|_| Err(interrupted())),
                permit = self.calls.acquire() => {
                    // Other schedules claimed at the same time first add their jobs.
                    tokio::task::yield_now().await;
                    let batch = self.take();
                    if batch.is_empty() {
                        // Another task's call includes the jobs.
                        drop(permit);
                        return answered.await.unwrap_or_else(|_| Err(interrupted()));
                    }
                    self.call(batch).await;
                }
            }
        }
    }

    /// Takes the next batch, without stopped schedules. The last one may exceed the limits.
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

    /// Makes one call for all requests, or one for each if a request is refused.
    async fn call(&self, batch: Vec<Request>) {
        let jobs = batch.iter().flat_map(|request| request.jobs.iter().cloned()).collect();
        match schedule(&self.dq, jobs).await {
            Ok(scheduled) => {
                let mut scheduled = scheduled.into_iter();
                for Request { jobs, answer } in batch {
                    let _ = answer.send(Ok(scheduled.by_ref().take(jobs.len()).collect()));
                }
            }
            // A schedule's refused or oversized jobs must not block other schedules.
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

pub(super) async fn schedule(dq: &Dq, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
    let mut scheduled = Vec::with_capacity(jobs.len());
    for call in jobs.chunks(dq.shared().limits.bulk.max(1)) {
        scheduled.extend(dq.shared().stores.schedule(call.to_vec()).await?);
    }
    Ok(scheduled)
}

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
