//! Blocking handlers: each run occupies a thread, which nothing can stop. A timeout only fires the
//! cancellation signal. The run ends when the handler returns, and its result counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq::prelude::*;
use dq::{Event, RunnerBuilder, Settled};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
struct Runs {
    active: Arc<AtomicUsize>,
    highest: Arc<AtomicUsize>,
}

impl Runs {
    fn block(&self, job: &JobContext) {
        let active = self.active.fetch_add(1, Ordering::SeqCst) + 1;
        self.highest.fetch_max(active, Ordering::SeqCst);
        while !job.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.active.fetch_sub(1, Ordering::SeqCst);
    }
}

#[delay_handler("GRIND", blocking, timeout = "20ms", max_attempts = 3, concurrency = 4)]
fn grind(job: JobContext, State(runs): State<Runs>) -> HandlerResult {
    runs.block(&job);
    Ok(Outcome::Done)
}

struct Grinder(Runs);

impl DelayHandler for Grinder {
    type Payload = ();
    const BLOCKING: bool = true;

    fn code(&self) -> impl QueueCode {
        "GRINDER"
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new().timeout(20.millis()).max_attempts(3).concurrency(4)
    }

    async fn handle(&self, job: JobContext, (): ()) -> HandlerResult {
        self.0.block(&job);
        Ok(Outcome::Done)
    }
}

dq::queue!(GRINDER: ());

/// Runs until one settlement is accepted. The job must be done.
async fn run_one(dq: &Dq, runner: RunnerBuilder) {
    let (sender, mut settlements) = mpsc::unbounded_channel();
    let runner = runner.observer(move |event: &Event<'_>| {
        if let Event::Settled { settled, .. } = event {
            // The test may have ended.
            let _ = sender.send(*settled);
        }
    });
    let settled = async {
        assert_eq!(settlements.recv().await, Some(Settled::Accepted));
    };
    runner.run_until(settled).await.unwrap();
    let stats = dq.stats().await.unwrap();
    assert_eq!(stats[0].totals.unwrap().done, 1);
}

#[tokio::test]
async fn a_function_is_cancelled_at_its_timeout_and_its_result_counts() {
    let dq = Dq::connect("memory:").await.unwrap();
    let _ = dq.schedule::<grind>(()).await.unwrap();
    let runs = Runs::default();
    run_one(&dq, dq.runner().state(runs.clone())).await;
    assert_eq!(runs.highest.load(Ordering::SeqCst), 1, "no retry runs concurrently");
}

#[tokio::test]
async fn an_object_is_cancelled_at_its_timeout_and_its_result_counts() {
    let dq = Dq::connect("memory:").await.unwrap();
    let _ = dq.schedule::<GRINDER>(()).await.unwrap();
    let runs = Runs::default();
    run_one(&dq, dq.runner().without_linked_handlers().handler(Grinder(runs.clone()))).await;
    assert_eq!(runs.highest.load(Ordering::SeqCst), 1, "no retry runs concurrently");
}
