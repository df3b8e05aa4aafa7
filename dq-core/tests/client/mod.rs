//! The client on the memory backend and a virtual clock.

mod bulk;
mod filter;
mod repeat;
mod simulate;
mod third_party;

use std::sync::Arc;

use dq_core::{
    Backend, Dq, DurationExt, Entropy, MemoryBackend, QueueHandle, Receipt, Scheduled, VirtualClock,
};

const QUEUE: &str = "Q";

async fn connect(backend: Arc<dyn Backend>, clock: &Arc<VirtualClock>) -> Dq {
    let builder = Dq::builder().backend(backend).clock(clock.clone()).entropy(Entropy::seeded(1));
    builder.connect().await.unwrap()
}

async fn open(backend: Arc<dyn Backend>, clock: &Arc<VirtualClock>) -> QueueHandle {
    connect(backend, clock).await.queue(QUEUE).unwrap()
}

async fn memory() -> (QueueHandle, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::default());
    (open(Arc::new(MemoryBackend::new(clock.clone())), &clock).await, clock)
}

/// The job is due in this many minutes.
async fn schedule(queue: &QueueHandle, key: &str, minutes: u64) -> Receipt {
    let job = queue.schedule("payload", "text/plain").after(minutes.minutes()).key(key);
    match job.await.unwrap() {
        Scheduled::Created(receipt) => receipt,
        other => panic!("{other:?}"),
    }
}
