//! Overview changes as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event;
use dq_ops::{Actor, Ops, Overview, Role};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cached::Cached;

/// Time between two readings of the overview.
const INTERVAL: Duration = Duration::from_secs(2);

/// Stream lifetime in a server that does not announce its stop. A graceful shutdown waits for open
/// responses, so this limits the wait.
const MAX_AGE: Duration = Duration::from_secs(15);

/// How long browsers wait before they reconnect.
const RECONNECT: Duration = Duration::from_secs(1);

/// The events of a router; clones share their readings of the store.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    ops: Ops,
    stop: Option<watch::Receiver<bool>>,
    /// The overview as JSON; `None` while the store is away. All listeners share a reading.
    latest: Arc<Cached<Option<Arc<str>>>>,
}

impl Live {
    pub(crate) fn new(ops: Ops, stop: Option<watch::Receiver<bool>>) -> Self {
        Self { ops, stop, latest: Arc::new(Cached::new(INTERVAL)) }
    }

    /// Streams the current state, then its changes. The stream ends when the server stops; without
    /// a stop signal, after [`MAX_AGE`].
    pub(crate) fn events(&self) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
        let end = Instant::now() + MAX_AGE;
        unfold((self.clone(), None), move |(mut live, sent)| async move {
            // Taken out, because `wait_for` changes it while `changed` borrows `live`.
            let mut stop = live.stop.take();
            let stopped = async {
                match &mut stop {
                    // An error means the server is gone.
                    Some(stop) => drop(stop.wait_for(|stopped| *stopped).await),
                    None => sleep_until(end).await,
                }
            };
            let overview = tokio::select! {
                overview = live.changed(sent) => overview,
                () = stopped => return None,
            };
            let event = Event::default().event("overview").data(&overview);
            // Such a stream ends while the server runs, so browsers should reconnect soon.
            let event = if stop.is_none() { event.retry(RECONNECT) } else { event };
            // The next event needs it again.
            live.stop = stop;
            Some((Ok(event), (live, Some(overview))))
        })
    }

    async fn changed(&self, sent: Option<Arc<str>>) -> Arc<str> {
        loop {
            let latest = self.latest.get(async {
                let session = self.ops.session(Actor::new("live", Role::Viewer));
                session.overview().await.ok().as_ref().and_then(as_json)
            });
            match latest.await {
                Some(latest) if sent.as_ref() != Some(&latest) => return latest,
                _ => sleep(INTERVAL).await,
            }
        }
    }
}

/// Serializes the overview without `at` and `oldest_ready_ms`, which always change.
fn as_json(overview: &Overview) -> Option<Arc<str>> {
    let mut value = serde_json::to_value(overview).ok()?;
    value.as_object_mut()?.remove("at");
    for queue in value.get_mut("queues")?.as_array_mut()? {
        queue.as_object_mut()?.remove("oldest_ready_ms");
    }
    Some(value.to_string().into())
}
