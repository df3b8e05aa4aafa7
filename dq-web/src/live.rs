//! Changes of the overview, sent to browsers and programs as server-sent events.
//!
//! One task reads the overview for all listeners of a router, and ends when the last one has left.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::response::sse::Event;
use dq_core::sync::lock;
use dq_ops::{Actor, Ops, Overview, Role};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Time between two readings.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long a stream lasts in a server that does not say when it stops: a server that waits for all
/// responses to end waits for at most this long.
const MAX_AGE: Duration = Duration::from_secs(15);

/// How long browsers wait before they open another stream after that.
const RECONNECT: Duration = Duration::from_secs(1);

/// The last overview as JSON, without what changes by itself: see `as_json`.
type Latest = Option<Arc<str>>;

/// Reads the overview while there are listeners.
#[derive(Debug)]
pub(crate) struct Live {
    ops: Ops,
    stop: Option<watch::Receiver<bool>>,
    // A blocking mutex suffices: it is held for microseconds and never across an await.
    sender: Arc<Mutex<Option<watch::Sender<Latest>>>>,
}

impl Live {
    pub(crate) fn new(ops: Ops, stop: Option<watch::Receiver<bool>>) -> Self {
        Self { ops, stop, sender: Arc::default() }
    }

    /// The changes from now on, beginning with the present state, until the server stops or, if it
    /// does not say so, for [`MAX_AGE`].
    pub(crate) fn events(&self) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
        let receiver = self.subscribe();
        let end = Instant::now() + MAX_AGE;
        unfold((receiver, self.stop.clone(), end), async |(mut receiver, mut stop, end)| {
            let stopped = async {
                match &mut stop {
                    // An error means that the server is gone.
                    Some(stop) => drop(stop.wait_for(|stopped| *stopped).await),
                    None => sleep_until(end).await,
                }
            };
            let latest = tokio::select! {
                changed = receiver.changed() => {
                    changed.ok()?;
                    receiver.borrow_and_update().clone()
                }
                () = stopped => return None,
            };
            let event = Event::default().event("overview").data(latest.as_deref().unwrap_or("{}"));
            let event = if stop.is_none() { event.retry(RECONNECT) } else { event };
            Some((Ok(event), (receiver, stop, end)))
        })
    }

    fn subscribe(&self) -> watch::Receiver<Latest> {
        let mut current = lock(&self.sender);
        if let Some(sender) = &*current {
            let mut receiver = sender.subscribe();
            // The present state counts as a change.
            if receiver.borrow().is_some() {
                receiver.mark_changed();
            }
            return receiver;
        }
        let (sender, receiver) = watch::channel(None);
        *current = Some(sender);
        drop(current);
        // Made here, since a task can be dropped before it has begun.
        let reading = Reading { sender: Arc::clone(&self.sender), has_ended: false };
        tokio::spawn(read(self.ops.clone(), reading));
        receiver
    }
}

/// Ends the streams of all listeners when the task that reads for them does, for whatever reason:
/// browsers then connect again, which starts another one.
struct Reading {
    sender: Arc<Mutex<Option<watch::Sender<Latest>>>>,
    /// The task has removed the sender itself. There may be another one since.
    has_ended: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.has_ended {
            *lock(&self.sender) = None;
        }
    }
}

/// Reads the overview until nobody listens.
async fn read(ops: Ops, mut reading: Reading) {
    let session = ops.session(Actor::new("live", Role::Viewer));
    loop {
        // While the store is away, listeners keep the last state.
        let overview = session.overview().await.ok().as_ref().and_then(as_json);
        {
            let mut sender = lock(&reading.sender);
            match &*sender {
                Some(sender) if sender.receiver_count() > 0 => {
                    if let Some(overview) = overview {
                        sender.send_if_modified(|latest| {
                            let changed = latest.as_deref() != Some(&*overview);
                            *latest = Some(overview);
                            changed
                        });
                    }
                }
                _ => {
                    *sender = None;
                    drop(sender);
                    reading.has_ended = true;
                    return;
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The overview without what changes by itself: the time, and how long a job has waited.
fn as_json(overview: &Overview) -> Option<Arc<str>> {
    let mut value = serde_json::to_value(overview).ok()?;
    value.as_object_mut()?.remove("at");
    for queue in value.get_mut("queues")?.as_array_mut()? {
        queue.as_object_mut()?.remove("oldest_ready_ms");
    }
    Some(value.to_string().into())
}

#[cfg(test)]
mod tests {
    use dq_core::Dq;

    use super::*;

    #[tokio::test]
    async fn streams_end_if_the_task_that_reads_dies() {
        let ops = Ops::new(Dq::connect("memory:").await.unwrap());
        let (sender, mut receiver) = watch::channel(None);
        let sender = Arc::new(Mutex::new(Some(sender)));
        let reading = Reading { sender: Arc::clone(&sender), has_ended: false };
        let task = tokio::spawn(read(ops, reading));
        receiver.changed().await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(sender.lock().unwrap().is_none(), "the next listener starts another task");
        assert!(receiver.changed().await.is_err());
    }
}
