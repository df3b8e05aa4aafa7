//! Backends with a deliberate defect. The judge must report a violation for each.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dq::async_trait;
use dq::backend::{
    Backend, Cancelled, ClaimParams, Claimed, Layer, Receipt, Scheduled, Settled, Settlement, Want,
};
use dq::{Due, Entropy, JobKey, JobRef, NewJob, QueueName, QueueStats, Result, Verdict};

/// Hits the first and then every twentieth stored job, settlement or claimed payload.
const EVERY: usize = 20;
/// Bytes that `leaks-memory` keeps for each call.
const LEAK: usize = 64 << 10;
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const SHORT_LEASE: Duration = Duration::from_millis(100);

/// Wraps the backend with the defect in `DQ_FAULTS_DEFECT`, if there is one. docs/faults.md
/// describes the defects; `cargo xtask` knows their names.
pub(crate) fn add(inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
    let Ok(defect) = env::var("DQ_FAULTS_DEFECT") else { return inner };
    let (calls, leaked, last) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
    Arc::new(Defective { inner, defect, calls, leaked, last })
}

#[derive(Debug)]
struct Defective {
    inner: Arc<dyn Backend>,
    defect: String,
    calls: AtomicUsize,
    /// For `leaks-memory`.
    leaked: Mutex<Vec<Vec<u8>>>,
    /// The last job for each key, for `restores-replaced`.
    last: Mutex<HashMap<JobKey, NewJob>>,
}

impl Defective {
    fn is(&self, defect: &str) -> bool {
        self.defect == defect
    }

    fn is_next_hit(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY)
    }
}

#[async_trait]
impl Layer for Defective {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        if self.is("loses-jobs") && self.is_next_hit() {
            let now = self.inner.now().await?;
            let lost = |job: &NewJob| Receipt { id: job.id, due: job.due.resolve(now) };
            return Ok(jobs.iter().map(|job| Scheduled::Created(lost(job))).collect());
        }
        if self.is("starts-early") {
            for job in &mut jobs {
                job.due = Due::NOW;
            }
        }
        if self.is("forgets-pins") {
            for job in &mut jobs {
                job.remember = Duration::ZERO;
            }
        }
        if self.is("leaks-memory") {
            // Not zeros: unwritten zero pages take no memory.
            let leak = vec![1; LEAK];
            self.leaked.lock().unwrap_or_else(PoisonError::into_inner).push(leak);
        }
        if self.is("leaves-jobs") {
            let now = self.inner.now().await?;
            let left = |job: &NewJob| {
                let id = Entropy::from_os().job_id(now);
                NewJob::new(id, job.queue.clone(), Due::After(YEAR), job.payload.clone())
            };
            let left = jobs.iter().map(left).collect();
            let _ = self.inner.schedule(left).await?;
        }
        if !self.is("restores-replaced") {
            return self.inner.schedule(jobs).await;
        }
        let scheduled = self.inner.schedule(jobs.clone()).await?;
        let mut replaced = Vec::new();
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            for (job, answer) in jobs.into_iter().zip(&scheduled) {
                let Some(key) = job.key.clone() else { continue };
                let before = last.insert(key, job);
                replaced.extend(before.filter(|_| matches!(answer, Scheduled::Replaced(_))));
            }
        }
        replaced.iter_mut().for_each(|job| job.key = None);
        let _ = self.inner.schedule(replaced).await?;
        Ok(scheduled)
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        match self.is("ignores-cancels") {
            true => Ok(vec![Cancelled::Cancelled; jobs.len()]),
            false => self.inner.cancel(jobs).await,
        }
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        if self.is("exchanges-payloads") {
            let mut claimed = self.inner.claim(params).await?;
            let hits = claimed.jobs.iter_mut().filter(|_| self.is_next_hit());
            hits.for_each(|leased| leased.job.payload = b"1000000".as_slice().into());
            return Ok(claimed);
        }
        if !self.is("ends-leases-early") {
            return self.inner.claim(params).await;
        }
        let short = |want: &Want| Want::new(want.queue.clone(), want.max, SHORT_LEASE);
        let wants: Vec<Want> = params.wants.iter().map(short).collect();
        let mut claimed =
            self.inner.claim(ClaimParams::new(&wants, params.limit, params.worker)).await?;
        for leased in &mut claimed.jobs {
            let want = params.wants.iter().find(|want| want.queue == leased.job.queue);
            leased.leased_until = claimed.now + want.map_or(SHORT_LEASE, |want| want.lease_for);
        }
        Ok(claimed)
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.inner.stats(queues).await?;
        if self.is("miscounts") {
            stats.iter_mut().filter_map(|stats| stats.totals.as_mut()).for_each(|it| it.done += 1);
        }
        Ok(stats)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let done = settlements.iter().any(|settlement| settlement.verdict == Verdict::Done);
        if self.is("drops-settlements") && done && self.is_next_hit() {
            return Ok(vec![Settled::Accepted; settlements.len()]);
        }
        let mut settlements = settlements.to_vec();
        if self.is("forgets-failures") {
            for settlement in &mut settlements {
                if let Verdict::Retry { due, .. } = settlement.verdict {
                    settlement.verdict = Verdict::Snooze(due);
                }
            }
        }
        self.inner.settle(&settlements).await
    }
}
