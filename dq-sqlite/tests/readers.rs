//! Looks whose caller does not wait for them any more.

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{Bed, queue};
use dq_core::config::Environment;
use dq_core::{Backend, Clock, Entropy, Timestamp, VirtualClock};
use dq_sqlite::SqliteBackend;

/// Connections that read at once.
const READERS: usize = 4;

/// A clock that holds up whoever asks for the time: each look asks once.
#[derive(Debug, Default)]
struct SlowClock {
    clock: VirtualClock,
    holds_up: AtomicBool,
    waiting: AtomicUsize,
}

impl Clock for SlowClock {
    fn now(&self) -> Timestamp {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.holds_up.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.clock.now()
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.clock.sleep_until(until)
    }
}

#[tokio::test]
async fn looks_that_were_given_up_keep_their_places_until_they_end() {
    let bed = Bed::new();
    let clock = Arc::new(SlowClock::default());
    let environment = Environment { clock: clock.clone(), entropy: Arc::new(Entropy::seeded(7)) };
    let backend = SqliteBackend::open(&bed.config(), &environment).await.unwrap();
    clock.holds_up.store(true, Ordering::SeqCst);
    let queues = [queue()];
    for _ in 0..3 * READERS {
        let look = backend.stats(&queues);
        let given_up = tokio::time::timeout(Duration::from_millis(20), look).await;
        assert!(given_up.is_err());
    }
    let looking = clock.waiting.load(Ordering::SeqCst);

    let close = backend.close();
    tokio::pin!(close);
    let closed = tokio::time::timeout(Duration::from_millis(50), close.as_mut()).await;
    clock.holds_up.store(false, Ordering::SeqCst);
    assert_eq!(looking, READERS);
    assert!(closed.is_err(), "closed while they still looked");
    close.await.unwrap();
}
