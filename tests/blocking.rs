//! Blocking handlers: they run on their own thread, and are not stopped but signalled.

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

/// Runs after its timeout until it is cancelled.
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
async fn a_blocking_handler_is_signalled_at_its_timeout_and_its_result_counts() {
    let dq = Dq::connect("memory:").await.unwrap();
    dq.schedule::<grind>(()).await.unwrap();
    let runs = Runs::default();
    let (settled_sender, mut settled_events) = mpsc::unbounded_channel();
    let runner = dq.runner().state(runs.clone()).observer(move |event: &Event<'_>| {
        if let Event::Settled { answer, .. } = event {
            // The test may have dropped the receiver.
            let _ = settled_sender.send(*answer);
        }
    });
    let settled = async {
        assert_eq!(settled_events.recv().await, Some(Settled::Accepted));
    };
    runner.run_until(settled).await.unwrap();
    assert_eq!(runs.most.load(Ordering::SeqCst), 1, "no retry runs beside the first attempt");
    let stats = dq.queue_of::<grind>().unwrap().stats().await.unwrap();
    assert_eq!(stats.totals.unwrap().done, 1);
}
