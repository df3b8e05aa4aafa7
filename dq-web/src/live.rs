//! Overview changes as server-sent events.
//!
//! One task reads the overview for all of a router's listeners, and ends when the last one leaves.

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

const INTERVAL: Duration = Duration::from_secs(2);

/// Stream lifetime in a server that does not announce its stop. A graceful shutdown waits for open
/// responses, so this limits the wait.
const MAX_AGE: Duration = Duration::from_secs(15);

/// How long browsers wait before they reconnect.
const RECONNECT: Duration = Duration::from_secs(1);

/// The last overview as JSON, without the fields that change by themselves (see `as_json`).
type Latest = Option<Arc<str>>;

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

    /// Streams the current state, then its changes. The stream ends when the server stops; without
    /// a stop signal, after [`MAX_AGE`].
    pub(crate) fn events(&self) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
        let receiver = self.subscribe();
        let end = Instant::now() + MAX_AGE;
        unfold((receiver, self.stop.clone(), end), async |(mut receiver, mut stop, end)| {
            let stopped = async {
                match &mut stop {
                    // An error means the server is gone.
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
            // The current state counts as a change.
            if receiver.borrow().is_some() {
                receiver.mark_changed();
            }
            return receiver;
        }
        let (sender, receiver) = watch::channel(None);
        *current = Some(sender);
        drop(current);
        // Created here because a task can be dropped before its first poll.
        let reading = Reading { sender: Arc::clone(&self.sender), has_ended: false };
        tokio::spawn(read(self.ops.clone(), reading));
        receiver
    }
}

/// Ends all streams when the reading task ends for any reason. Browsers then reconnect, which
/// starts a new task.
struct Reading {
    sender: Arc<Mutex<Option<watch::Sender<Latest>>>>,
    /// The task removed its sender. The current sender may belong to a newer task.
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

/// Serializes the overview without the time and the wait of the oldest job, which always change.
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
