//! Reads whose caller has stopped waiting.

mod common;

use std::time::Duration;

use common::{Fixture, queue};
use dq_core::Backend;

/// Maximum number of connections that read at once, as in `reader.rs`.
const READERS: usize = 4;

#[tokio::test]
async fn abandoned_reads_keep_their_permits_until_they_end() {
    let fixture = Fixture::new();
    let (backend, blocking_clock) = fixture.open_with_blocking_clock().await;
    blocking_clock.block();
    let queues = [queue()];
    for _ in 0..3 * READERS {
        let read = backend.stats(&queues);
        let abandoned = tokio::time::timeout(Duration::from_millis(20), read).await;
        assert!(abandoned.is_err());
    }
    blocking_clock.wait_for_blocked(READERS).await;

    let close = backend.close();
    tokio::pin!(close);
    let closed = tokio::time::timeout(Duration::from_millis(50), close.as_mut()).await;
    let reading = blocking_clock.blocked_callers();
    blocking_clock.unblock();
    assert_eq!(reading, READERS);
    assert!(closed.is_err(), "closed while reads were running");
    close.await.unwrap();
}
