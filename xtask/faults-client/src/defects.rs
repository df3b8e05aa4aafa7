//! Backends with a deliberate defect. The judge must report a violation for each.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dq::async_trait;
use dq::backend::{
    Backend, Cancelled, ClaimParams, Claimed, Layer, OperateReport, Operation, Receipt, Scheduled,
    Settled, Settlement, Want,
};
use dq::{Due, Entropy, JobKey, JobRef, NewJob, QueueName, QueueStats, Result, Verdict};

/// A defect that is not permanent hits the first and then every twentieth call.
const EVERY: usize = 20;
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

    async fn pretend_to_store(&self, jobs: &[NewJob]) -> Result<Vec<Scheduled>> {
        let now = self.inner.now().await?;
        let receipt = |job: &NewJob| Receipt { id: job.id, due: job.due.resolve(now) };
        Ok(jobs.iter().map(|job| Scheduled::Created(receipt(job))).collect())
    }

    fn leak(&self) {
        // Not zeros: unwritten zero pages take no memory.
        lock(&self.leaked).push(vec![1; LEAK]);
    }

    async fn store_copies(&self, jobs: &[NewJob]) -> Result<()> {
        let now = self.inner.now().await?;
        let copy = |job: &NewJob| {
            let id = Entropy::from_os().job_id(now);
            NewJob::new(id, job.queue.clone(), Due::After(YEAR), job.payload.clone())
        };
        self.inner.schedule(jobs.iter().map(copy).collect()).await.map(drop)
    }

    /// Stores jobs, and once more the jobs that they have replaced.
    async fn schedule_and_restore(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let scheduled = self.inner.schedule(jobs.clone()).await?;
        let mut replaced = Vec::new();
        for (job, answer) in jobs.into_iter().zip(&scheduled) {
            let Some(key) = job.key.clone() else { continue };
            let previous = lock(&self.last).insert(key, job);
            if let (Some(mut previous), Scheduled::Replaced(_)) = (previous, answer) {
                previous.key = None;
                replaced.push(previous);
            }
        }
        let _ = self.inner.schedule(replaced).await?;
        Ok(scheduled)
    }

    async fn claim_with_short_leases(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let short = |want: &Want| Want::new(want.queue.clone(), want.max, SHORT_LEASE);
        let wants: Vec<Want> = params.wants.iter().map(short).collect();
        let short = ClaimParams::new(&wants, params.limit, params.worker);
        let mut claimed = self.inner.claim(short).await?;
        for leased in &mut claimed.jobs {
            let want = params.wants.iter().find(|want| want.queue == leased.job.queue);
            leased.leased_until = claimed.now + want.map_or(SHORT_LEASE, |want| want.lease_for);
        }
        Ok(claimed)
    }
}

#[async_trait]
impl Layer for Defective {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        match self.defect.as_str() {
            "loses-jobs" if self.is_next_hit() => return self.pretend_to_store(&jobs).await,
            "starts-early" => jobs.iter_mut().for_each(|job| job.due = Due::NOW),
            "forgets-pins" => jobs.iter_mut().for_each(|job| job.remember = Duration::ZERO),
            "leaks-memory" => self.leak(),
            "leaves-jobs" => self.store_copies(&jobs).await?,
            "restores-replaced" => return self.schedule_and_restore(jobs).await,
            _ => {}
        }
        self.inner.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        match self.is("ignores-cancels") {
            true => Ok(vec![Cancelled::Cancelled; jobs.len()]),
            false => self.inner.cancel(jobs).await,
        }
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        if self.is("ends-leases-early") {
            return self.claim_with_short_leases(params).await;
        }
        let mut claimed = self.inner.claim(params).await?;
        if self.is("exchanges-payloads") {
            let hits = claimed.jobs.iter_mut().filter(|_| self.is_next_hit());
            hits.for_each(|leased| leased.job.payload = b"1000000".as_slice().into());
        }
        Ok(claimed)
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let Operation::OverrideFlow { queue, flow: Some(mut flow) } = operation else {
            return self.inner.operate(operation).await;
        };
        match self.defect.as_str() {
            "exceeds-limits" => flow.max_running = None,
            "exceeds-group-limits" => flow.group_max_running = None,
            "exceeds-rates" => flow.rate = None,
            _ => {}
        }
        self.inner.operate(Operation::OverrideFlow { queue, flow: Some(flow) }).await
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
