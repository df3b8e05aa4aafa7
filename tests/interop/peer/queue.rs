//! A Java client's calls on a queue.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Codec, Peer, PeerError, Request, Value};

/// A [`Peer`]'s queue: the `RBlockingQueue` (`target_…`, on the destination list) and, once
/// [`open`](Self::open), the `RDelayedQueue` on it (`delayed_…`).
#[derive(Debug)]
pub(crate) struct Queue<'p> {
    peer: &'p Peer,
    name: String,
    codec: Codec,
}

/// A taken value, and when, in ms since 1970 on the clock shared by both sides.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Arrival {
    pub(crate) at_ms: u64,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct TransferRate {
    pub(crate) moved: u64,
    pub(crate) elapsed_ms: f64,
    /// How often the server was too busy to return the list's size.
    pub(crate) failures: u64,
}

impl TransferRate {
    pub(crate) fn per_second(&self) -> f64 {
        self.moved as f64 * 1000.0 / self.elapsed_ms
    }
}

impl<'p> Queue<'p> {
    pub(super) fn new(peer: &'p Peer, name: &str, codec: Codec) -> Self {
        Self { peer, name: name.to_owned(), codec }
    }

    /// `getDelayedQueue`. Until [`destroy`](Self::destroy), this client transfers due entries.
    pub(crate) async fn open(&self) -> Result<(), PeerError> {
        self.ask(self.request("open")).await
    }

    /// `RDelayedQueue.destroy`. Fails if the queue is not open, as do `offer` and all `delayed_…`.
    pub(crate) async fn destroy(&self) -> Result<(), PeerError> {
        self.ask(self.request("destroy")).await
    }

    pub(crate) async fn offer(&self, value: &Value, delay: Duration) -> Result<(), PeerError> {
        let delay_ms = Some(delay.as_millis() as u64);
        self.ask(Request { value: Some(value), delay_ms, ..self.request("offer") }).await
    }

    /// `RDelayedQueue.poll`: takes the entry that was offered first, due or not.
    pub(crate) async fn delayed_poll(&self) -> Result<Option<Value>, PeerError> {
        self.ask(self.request("delayed_poll")).await
    }

    pub(crate) async fn delayed_remove(&self, value: &Value) -> Result<bool, PeerError> {
        self.ask(Request { value: Some(value), ..self.request("delayed_remove") }).await
    }

    pub(crate) async fn delayed_contains(&self, value: &Value) -> Result<bool, PeerError> {
        self.ask(Request { value: Some(value), ..self.request("delayed_contains") }).await
    }

    pub(crate) async fn delayed_size(&self) -> Result<u64, PeerError> {
        self.ask(self.request("delayed_size")).await
    }

    pub(crate) async fn delayed_values(&self) -> Result<Vec<Value>, PeerError> {
        self.ask(self.request("delayed_values")).await
    }

    /// `RDelayedQueue.delete`, which does not change the destination list.
    pub(crate) async fn delayed_delete(&self) -> Result<bool, PeerError> {
        self.ask(self.request("delayed_delete")).await
    }

    /// `RBlockingQueue.offer`, without a delay.
    pub(crate) async fn target_offer(&self, value: &Value) -> Result<bool, PeerError> {
        self.ask(Request { value: Some(value), ..self.request("target_offer") }).await
    }

    pub(crate) async fn target_poll(&self) -> Result<Option<Value>, PeerError> {
        self.ask(self.request("target_poll")).await
    }

    /// `RBlockingQueue.poll(timeout)`, with one blocking command. Redisson may round up to whole
    /// seconds.
    pub(crate) async fn take(&self, timeout: Duration) -> Result<Option<Value>, PeerError> {
        self.ask(Request { timeout_ms: milliseconds(timeout), ..self.request("target_take") }).await
    }

    pub(crate) async fn target_size(&self) -> Result<u64, PeerError> {
        self.ask(self.request("target_size")).await
    }

    pub(crate) async fn target_values(&self) -> Result<Vec<Value>, PeerError> {
        self.ask(self.request("target_values")).await
    }

    /// `RBlockingQueue.delete`, which does not change the delayed queue.
    pub(crate) async fn target_delete(&self) -> Result<bool, PeerError> {
        self.ask(self.request("target_delete")).await
    }

    /// Starts a thread that calls `RBlockingQueue.take` `count` times.
    pub(crate) async fn collect(&self, count: usize) -> Result<Collector<'_>, PeerError> {
        let request = Request { count: Some(count as u64), ..self.request("collect") };
        Ok(Collector { number: self.ask(request).await?, queue: self })
    }

    /// Opens another delayed queue on this one; its entries should already be due. Measures how
    /// fast the destination list grows, until `expected` entries have moved or `limit` has passed.
    pub(crate) async fn transfer_rate(
        &self,
        expected: u64,
        limit: Duration,
    ) -> Result<TransferRate, PeerError> {
        let (expected, timeout_ms) = (Some(expected), milliseconds(limit));
        self.ask(Request { expected, timeout_ms, ..self.request("transfer_rate") }).await
    }

    fn request<'a>(&'a self, command: &'a str) -> Request<'a> {
        Request { command, queue: &self.name, codec: self.codec.name(), ..Request::default() }
    }

    async fn ask<T: DeserializeOwned>(&self, request: Request<'_>) -> Result<T, PeerError> {
        self.peer.ask(request).await
    }
}

#[derive(Debug)]
pub(crate) struct Collector<'q> {
    queue: &'q Queue<'q>,
    number: u64,
}

impl Collector<'_> {
    /// All values taken so far, in order. Returns once all expected ones were taken or after
    /// `timeout`. Can be called again.
    pub(crate) async fn within(&self, timeout: Duration) -> Result<Vec<Arrival>, PeerError> {
        let (collector, timeout_ms) = (Some(self.number), milliseconds(timeout));
        self.queue.ask(Request { collector, timeout_ms, ..self.queue.request("collected") }).await
    }
}

fn milliseconds(time: Duration) -> Option<u64> {
    Some(time.as_millis() as u64)
}
