//! A store that separates queues, so that one id may exist in two.

use std::sync::Arc;

use dq_core::{
    Backend, ClaimParams, Claimed, DurationExt, Layer, MemoryBackend, NewJob, Outcome, QueueName,
    Renewal, Renewed, Result, Scheduled, Settled, Settlement, VirtualClock, async_trait,
};

use crate::fixture::{Fixture, Observed, QUEUE, TestHandler};

const OTHER: &str = "OTHER";

#[derive(Debug)]
struct StorePerQueue {
    main: MemoryBackend,
    other: MemoryBackend,
}

impl StorePerQueue {
    fn of(&self, queue: &QueueName) -> &dyn Backend {
        if queue.as_str() == OTHER { &self.other } else { &self.main }
    }
}

#[async_trait]
impl Layer for StorePerQueue {
    fn inner(&self) -> &dyn Backend {
        &self.main
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let mut results = Vec::new();
        for job in jobs {
            results.extend(self.of(&job.queue.clone()).schedule(vec![job]).await?);
        }
        Ok(results)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = Claimed::new(Vec::new(), None, Backend::now(&self.main).await?);
        for want in params.wants {
            let wants = std::slice::from_ref(want);
            let limit = params.limit - claimed.jobs.len();
            let params = ClaimParams::new(wants, limit, params.worker);
            let Claimed { jobs, next_due, .. } = self.of(&want.queue).claim(params).await?;
            claimed.jobs.extend(jobs);
            claimed.next_due = claimed.next_due.into_iter().chain(next_due).min();
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut results = Vec::new();
        for settlement in settlements {
            let store = self.of(&settlement.lease.queue);
            results.extend(store.settle(std::slice::from_ref(settlement)).await?);
        }
        Ok(results)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let mut results = Vec::new();
        for renewal in renewals {
            let store = self.of(&renewal.lease.queue);
            results.extend(store.renew(std::slice::from_ref(renewal)).await?);
        }
        Ok(results)
    }
}

#[tokio::test]
async fn jobs_of_two_queues_with_one_id_run_side_by_side() {
    let clock = Arc::new(VirtualClock::default());
    let [main, other] = [(); 2].map(|()| MemoryBackend::new(clock.clone()));
    let store = Arc::new(StorePerQueue { main, other });
    let mut fixture = Fixture::with_backend(store, clock).await;
    let id = fixture.dq.new_id();
    for queue in [QUEUE, OTHER] {
        let job = fixture.dq.queue(queue).unwrap().schedule(r#""x""#, "application/json");
        assert!(job.id(id).await.unwrap().is_stored());
    }
    let handler = || {
        TestHandler::new(async |job, _| {
            job.sleep(1.seconds()).await;
            Ok(Outcome::Done)
        })
    };
    fixture.start(|runner| runner.handler(handler()).handler(handler().of_queue(OTHER)));
    let accepted = Observed::Settled(Settled::Accepted);
    for _ in 0..2 {
        let before = fixture.advance_until(100.millis(), &accepted).await;
        assert!(!before.contains(&Observed::LeaseLost), "{before:?}");
    }
    fixture.stop().await;
}
