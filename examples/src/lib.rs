//! A helper that several examples share.

use dq::QueueHandle;
use dq::prelude::*;

/// Completes when the queue has no waiting or running job.
pub async fn all_ended(queue: QueueHandle) {
    while !queue.stats().await.is_ok_and(|stats| stats.live() == 0) {
        tokio::time::sleep(20.millis()).await;
    }
}
