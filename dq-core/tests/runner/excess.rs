//! A store that returns more jobs than requested.

use std::sync::Arc;

use dq_core::{
    Backend, ClaimParams, Claimed, Layer, MemoryBackend, Outcome, Result, VirtualClock, Want,
    async_trait,
};

use crate::runner::fixture::{Fixture, Runs, TestHandler};

#[derive(Debug)]
struct ReturnsMore(MemoryBackend);

#[async_trait]
impl Layer for ReturnsMore {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let more = |want: &Want| Want::new(want.queue.clone(), 3 * want.max, want.lease_for);
        let wants: Vec<Want> = params.wants.iter().map(more).collect();
        Backend::claim(&self.0, ClaimParams::new(&wants, 3 * params.limit, params.worker)).await
    }
}

#[tokio::test]
async fn jobs_beyond_those_that_were_asked_for_are_handed_back() {
    let clock = Arc::new(VirtualClock::default());
    let store = ReturnsMore(MemoryBackend::new(clock.clone()));
    let mut fixture = Fixture::with_backend(Arc::new(store), clock).await;
    for payload in ["a", "b", "c", "d", "e", "f", "g"] {
        fixture.schedule(payload).await;
    }
    let runs = Arc::new(Runs::default());
    let counted = Arc::clone(&runs);
    let handler = TestHandler::new(move |ctx, _| {
        let run = counted.count();
        async move {
            tokio::task::yield_now().await;
            drop(run);
            assert_eq!((ctx.deliveries(), ctx.job().losses), (1, 0), "a job that is handed back");
            Ok(Outcome::Done)
        }
    });
    fixture.start(|runner| runner.handler(handler.with(|settings| settings.concurrency = Some(2))));
    for _ in 0..7 {
        assert_eq!(fixture.wait_finished().await, "Done");
    }
    fixture.wait_settled().await;
    assert_eq!(runs.highest(), 2);
    assert_eq!(fixture.stats().await.live(), 0);
    fixture.stop().await;
}
