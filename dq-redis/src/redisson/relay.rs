//! Moving due jobs to the target lists of queues that only Java's clients take from.
//!
//! In Redisson that is done by each client that holds an `RDelayedQueue` object, and by nobody if
//! none does: then jobs stay where they are. This does it for the queues that the settings name.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Clock, QueueName, Result, Timestamp, Wakeups};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backend::RedisBackend;
use crate::batch::CHUNK;
use crate::connect::Link;
use crate::error::unexpected;
use crate::keys::Partition;
use crate::reply::Reply;
use crate::script::JavaScripts;

/// A look at least so often, whatever was published or lost.
const SWEEP: Duration = Duration::from_secs(1);

/// Calls for one queue before the others have their turn.
const CALLS: usize = 10;

/// The task that moves jobs. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    end: CancellationToken,
    _end: DropGuard,
}

impl Relay {
    pub(super) fn start(
        native: &RedisBackend,
        scripts: Arc<JavaScripts>,
        queues: &BTreeSet<QueueName>,
        environment: &Environment,
    ) -> Self {
        let end = CancellationToken::new();
        let queues: Vec<QueueName> = queues.iter().cloned().collect();
        let mover = Mover {
            link: Arc::clone(&native.store.link),
            lanes: queues.iter().map(|queue| native.store.partitions.unsharded(queue)).collect(),
            scripts,
            clock: Arc::clone(&environment.clock),
        };
        let wakeups = Arc::clone(&native.wakeups);
        let lanes = mover.lanes.clone();
        tokio::spawn(end.clone().run_until_cancelled_owned(async move {
            let wakeups = wakeups.listen(&lanes).await;
            mover.run(wakeups).await;
        }));
        Self { end: end.clone(), _end: end.drop_guard() }
    }
}

impl Relay {
    /// Moves nothing more.
    pub(super) fn close(&self) {
        self.end.cancel();
    }
}

struct Mover {
    link: Arc<Link>,
    lanes: Vec<Arc<Partition>>,
    scripts: Arc<JavaScripts>,
    clock: Arc<dyn Clock>,
}

impl Mover {
    async fn run(self, mut wakeups: Wakeups) {
        loop {
            let rest = self.round().await;
            tokio::select! {
                () = self.clock.sleep(rest) => {}
                _ = wakeups.next() => {}
            }
        }
    }

    /// Moves what is due, and says how long nothing else is. A queue that cannot be served keeps the
    /// others from nothing.
    async fn round(&self) -> Duration {
        let mut rest = SWEEP;
        for lane in &self.lanes {
            match self.drain(lane).await {
                Ok(next) => rest = rest.min(next),
                Err(error) => {
                    tracing::warn!(%error, queue = %lane.queue, "Redis: due jobs of Java's were not moved");
                }
            }
        }
        rest
    }

    async fn drain(&self, lane: &Partition) -> Result<Duration> {
        for _ in 0..CALLS {
            let step = step(&self.link, &self.scripts, lane, CHUNK).await?;
            if step.moved == 0 {
                return Ok(step.next.map_or(SWEEP, |next| next.since(step.now)));
            }
        }
        Ok(Duration::ZERO)
    }
}

/// What one call did.
pub(super) struct Step {
    now: Timestamp,
    pub(super) moved: i64,
    /// When the next job is due.
    next: Option<Timestamp>,
}

/// Moves some due jobs of one queue, unless it is paused.
pub(super) async fn step(
    link: &Link,
    scripts: &JavaScripts,
    lane: &Partition,
    most: usize,
) -> Result<Step> {
    let mut call = scripts.transfer.on([lane]);
    call.arg(most);
    let answer = call.run(link, "relay").await?;
    let read = |answer| {
        let mut reply = Reply::new(answer)?;
        let now = Timestamp::from_millis(reply.number()?);
        let moved = reply.number()?;
        Some(Step { now, moved, next: reply.number_or_nil()?.map(Timestamp::from_millis) })
    };
    match read(answer) {
        Some(step) => Ok(step),
        None => unexpected("relay"),
    }
}
