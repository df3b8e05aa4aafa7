//! Transfers due jobs for queues with only Java consumers.
//!
//! In Redisson every client with an open `RDelayedQueue` moves due entries to the destination list,
//! where `take()` pops them. This task does so for
//! [`consumed_by_java`](super::RedissonConfig::consumed_by_java).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Clock, QueueName, Result, Wakeups};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::scripts::JavaScripts;
use crate::batch::CHUNK;
use crate::connect::Link;
use crate::keys::Partition;
use crate::reply::Reply;
use crate::store::RedisBackend;

/// Bounds the delay if a notification is lost.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// After so many calls for one queue, the next queue has its turn.
const MAX_CALLS: usize = 10;

/// Starts the background task, which ends when the guard is dropped.
pub(super) fn start(
    native: &RedisBackend,
    scripts: Arc<JavaScripts>,
    queues: &BTreeSet<QueueName>,
    environment: &Environment,
) -> DropGuard {
    let end = CancellationToken::new();
    let transfer = Transfer {
        link: Arc::clone(&native.link),
        partitions: queues.iter().map(|queue| native.partitions.unsharded(queue)).collect(),
        scripts,
        clock: Arc::clone(&environment.clock),
    };
    let wakeups = Arc::clone(&native.wakeups);
    tokio::spawn(end.clone().run_until_cancelled_owned(async move {
        let wakeups = wakeups.listen(&transfer.partitions, "").await;
        transfer.run(wakeups).await;
    }));
    end.drop_guard()
}

struct Transfer {
    link: Arc<Link>,
    partitions: Vec<Arc<Partition>>,
    scripts: Arc<JavaScripts>,
    clock: Arc<dyn Clock>,
}

impl Transfer {
    async fn run(self, mut wakeups: Wakeups) {
        loop {
            let pause = self.transfer_all().await;
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                _ = wakeups.next() => {}
            }
        }
    }

    /// Returns the pause until more jobs are due. An error in one queue does not delay the others.
    async fn transfer_all(&self) -> Duration {
        let mut pause = MAX_PAUSE;
        for partition in &self.partitions {
            match self.transfer_queue(partition).await {
                Ok(next) => pause = pause.min(next),
                Err(error) => {
                    tracing::warn!(%error, queue = %partition.queue, "Redisson: due jobs were not transferred");
                }
            }
        }
        pause
    }

    /// Returns the pause until more jobs are due: zero if there may be more now.
    async fn transfer_queue(&self, partition: &Partition) -> Result<Duration> {
        for _ in 0..MAX_CALLS {
            let mut call = self.scripts.transfer.on([partition]);
            call.arg(CHUNK);
            let mut reply = Reply::new(call.run(&self.link).await?)?;
            let (now, moved, next_due) = (reply.time()?, reply.count()?, reply.time_or_nil()?);
            if moved == 0 {
                return Ok(next_due.map_or(MAX_PAUSE, |due| due.since(now)));
            }
        }
        Ok(Duration::ZERO)
    }
}
