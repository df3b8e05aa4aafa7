//! Calls repeated after a lost answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{
    Backend, Capabilities, ClaimParams, DurationExt, Error, ErrorKind, HistoryLimit, HistoryLimits,
    Layer, MemoryBackend, NewJob, Result, Scheduled, Settlement, Verdict, VirtualClock, Want,
    async_trait,
};

use crate::client::{QUEUE, connect};

/// Loses the answer to the first schedule call. Before the call is repeated, a runner completes all
/// due jobs.
#[derive(Debug)]
struct LosesAnswer {
    inner: MemoryBackend,
    lost: AtomicBool,
}

#[async_trait]
impl Layer for LosesAnswer {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        // Calls to a durable store are repeated if their outcome is unknown.
        capabilities.durable = true;
        capabilities
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let results = Backend::schedule(&self.inner, jobs).await?;
        if self.lost.swap(true, Ordering::SeqCst) {
            return Ok(results);
        }
        let wants = [Want::new(QUEUE.try_into()?, 10, 30.seconds())];
        let claimed = Backend::claim(&self.inner, ClaimParams::new(&wants, 10, "worker")).await?;
        let done = claimed.jobs.iter().map(|job| Settlement::new(job.lease(), Verdict::Done));
        Backend::settle(&self.inner, &done.collect::<Vec<_>>()).await?;
        Err(Error::new(ErrorKind::OutcomeUnknown, "the answer was lost"))
    }
}

#[tokio::test]
async fn a_job_that_has_run_before_its_call_is_repeated_is_not_scheduled_again() {
    let clock = Arc::new(VirtualClock::default());
    let history = HistoryLimits::all(HistoryLimit::default());
    let inner = MemoryBackend::with_history(clock.clone(), history);
    let store = Arc::new(LosesAnswer { inner, lost: AtomicBool::new(false) });
    let dq = connect(store, &clock).await;
    let queue = dq.queue(QUEUE).unwrap();
    let (now, later) = (dq.new_id(), dq.new_id());
    let jobs = [
        queue.schedule("later", "text/plain").after(1.hours()).id(later),
        queue.schedule("now", "text/plain").id(now).remember(1.hours()),
        queue.schedule("now", "text/plain").id(dq.new_id()),
    ];
    let results = dq.schedule_many(jobs).await.unwrap();
    assert!(
        matches!(results[..], [Scheduled::Created(_), Scheduled::Ended(_), Scheduled::Ended(_)]),
        "{results:?}"
    );
    assert_eq!((results[0].id(), results[1].id()), (later, now));
    let stats = queue.stats().await.unwrap();
    let totals = stats.totals.unwrap();
    assert_eq!((stats.stored(), totals.created, totals.done), (1, 3, 2));
}
