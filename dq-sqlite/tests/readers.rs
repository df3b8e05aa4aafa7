//! Looks whose caller does not wait for them any more.

mod common;

use std::time::Duration;

use common::{Bed, queue};
use dq_core::Backend;

/// Connections that read at once.
const READERS: usize = 4;

#[tokio::test]
async fn looks_that_were_given_up_keep_their_places_until_they_end() {
    let bed = Bed::new();
    let (backend, brake) = bed.open_with_brake().await;
    brake.hold();
    let queues = [queue()];
    for _ in 0..3 * READERS {
        let look = backend.stats(&queues);
        let given_up = tokio::time::timeout(Duration::from_millis(20), look).await;
        assert!(given_up.is_err());
    }
    brake.holds(READERS).await;

    let close = backend.close();
    tokio::pin!(close);
    let closed = tokio::time::timeout(Duration::from_millis(50), close.as_mut()).await;
    let looking = brake.waiting();
    brake.release();
    assert_eq!(looking, READERS);
    assert!(closed.is_err(), "closed while they still looked");
    close.await.unwrap();
}
