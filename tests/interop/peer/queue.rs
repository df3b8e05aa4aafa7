//! A Java client's calls on a queue. Each panics if Java answers with an error.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use super::{Codec, Peer, Value};

/// A [`Peer`]'s queue: the `RBlockingQueue` on the destination list and, once
/// [`open`](Self::open), the `RDelayedQueue` on it.
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

impl<'p> Queue<'p> {
    pub(super) fn new(peer: &'p Peer, name: &str, codec: Codec) -> Self {
        Self { peer, name: name.to_owned(), codec }
    }

    /// `getDelayedQueue`. From now on, this client transfers due entries.
    pub(crate) async fn open(&self) {
        self.ask("open").await
    }

    pub(crate) async fn offer(&self, value: &Value, delay: Duration) {
        let arguments = json!({ "value": value, "delay_ms": delay.as_millis() as u64 });
        self.call("offer", arguments).await.unwrap()
    }

    /// `RBlockingQueue.poll(timeout)`, with one blocking command. Redisson may round up to whole
    /// seconds.
    pub(crate) async fn take(&self, timeout: Duration) -> Option<Value> {
        let arguments = json!({ "timeout_ms": timeout.as_millis() as u64 });
        self.call("target_take", arguments).await.unwrap()
    }

    /// Starts a thread that calls `RBlockingQueue.take` `count` times.
    pub(crate) async fn collect(&self, count: usize) -> Collector<'_> {
        let number = self.call("collect", json!({ "count": count })).await.unwrap();
        Collector { number, queue: self }
    }

    /// Runs a command of `Commands.java` without arguments.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, command: &str) -> T {
        self.try_ask(command).await.unwrap()
    }

    /// # Errors
    /// Java's exception.
    pub(crate) async fn try_ask<T: DeserializeOwned>(&self, command: &str) -> Result<T, String> {
        self.call(command, json!({})).await
    }

    /// Runs a command on a value. Its answer is a Boolean.
    pub(crate) async fn ask_with(&self, command: &str, value: &Value) -> bool {
        self.call(command, json!({ "value": value })).await.unwrap()
    }

    async fn call<T: DeserializeOwned>(
        &self,
        command: &str,
        mut arguments: Json,
    ) -> Result<T, String> {
        arguments["command"] = command.into();
        arguments["queue"] = self.name.as_str().into();
        arguments["codec"] = self.codec.name().into();
        self.peer.ask(&arguments).await
    }
}

/// A Java thread that takes values.
pub(crate) struct Collector<'q> {
    queue: &'q Queue<'q>,
    number: u64,
}

impl Collector<'_> {
    /// All values taken so far, in order. Returns once all expected ones were taken or after
    /// `timeout`. Can be called again.
    pub(crate) async fn within(&self, timeout: Duration) -> Vec<Arrival> {
        let timeout_ms = timeout.as_millis() as u64;
        let arguments = json!({ "collector": self.number, "timeout_ms": timeout_ms });
        self.queue.call("collected", arguments).await.unwrap()
    }
}
