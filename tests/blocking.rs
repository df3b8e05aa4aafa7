//! Handlers that block: they have a thread of their own, and cannot be stopped, only be told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq::prelude::*;
use dq::{Event, Settled};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
struct Runs {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

/// Goes on long after its timeout, until it is told to stop.
#[delay_handler("GRIND", blocking, timeout = "20ms", max_attempts = 3, concurrency = 4)]
fn grind(job: JobContext, State(runs): State<Runs>) -> HandlerResult {
    runs.most.fetch_max(runs.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    while !job.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    runs.now.fetch_sub(1, Ordering::SeqCst);
    Ok(Outcome::Done)
}

#[tokio::test]
async fn at_its_timeout_it_is_told_and_what_it_returns_counts() {
    let dq = Dq::connect("memory:").await.unwrap();
    dq.schedule::<grind>(()).await.unwrap();
    let runs = Runs::default();
    let (say, mut said) = mpsc::unbounded_channel();
    let runner = dq.runner().state(runs.clone()).observer(move |event: &Event<'_>| {
        if let Event::Settled { settled, .. } = event {
            // The test may have heard enough.
            let _ = say.send(*settled);
        }
    });
    let settled = async {
        assert_eq!(said.recv().await, Some(Settled::Accepted));
    };
    runner.run_until(settled).await.unwrap();
    assert_eq!(runs.most.load(Ordering::SeqCst), 1, "no retry beside the run that goes on");
    let stats = dq.queue_of::<grind>().unwrap().stats().await.unwrap();
    assert_eq!(stats.totals.unwrap().done, 1);
}
