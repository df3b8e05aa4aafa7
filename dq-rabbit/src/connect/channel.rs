//! A channel with a time limit for its requests.
//!
//! The client library waits for a reply as long as the connection lasts, and a connection that the
//! broker blocks may last for hours. So `clippy.toml` forbids the library's channel outside of this
//! file.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "they get their limits here"
)]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation, Connection, Consumer, ExchangeKind};
use tokio::runtime::Handle;

use crate::error::Blocked;

const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How many timeouts a declaration may take, because it writes to the disks of several nodes.
const DECLARE_LIMITS: u32 = 6;

#[derive(Debug, Clone)]
pub(super) struct ReplyLimit {
    pub(super) timeout: Duration,
    pub(super) blocked: Arc<Mutex<Option<String>>>,
}

impl ReplyLimit {
    /// Waits for the reply for at most `limits` timeouts; for one while the connection is blocked.
    pub(super) async fn wait<T>(
        &self,
        mut reply: BoxFuture<'_, lapin::Result<T>>,
        limits: u32,
    ) -> lapin::Result<T> {
        for _ in 0..limits {
            if let Ok(reply) = tokio::time::timeout(self.timeout, &mut reply).await {
                return reply;
            }
            if let Some(reason) = lock(&self.blocked).clone() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, Blocked(reason)).into());
            }
        }
        Err(io::Error::from(io::ErrorKind::TimedOut).into())
    }
}

/// An open channel. It closes with its last clone and the last consumer on it. After a request has
/// failed or taken too long, do not use it again: the broker has closed it, or may still carry the
/// request out.
#[derive(Debug, Clone)]
pub(crate) struct AmqpChannel {
    channel: lapin::Channel,
    limit: ReplyLimit,
}

pub(crate) struct Reply<T> {
    reply: BoxFuture<'static, lapin::Result<T>>,
    limit: ReplyLimit,
    limits: u32,
}

/// Closes the channel in the background unless it is disarmed.
struct CloseOnDrop(Option<AmqpChannel>);

impl CloseOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let (Some(channel), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(channel.close());
        }
    }
}

impl<T> Reply<T> {
    /// Waits for the reply; the limit begins now.
    ///
    /// # Errors
    /// The broker's error; `TimedOut` without a reply in time, with [`Blocked`] inside if the
    /// broker blocks the connection.
    pub(crate) async fn received(self) -> lapin::Result<T> {
        self.limit.wait(self.reply, self.limits).await
    }

    /// Waits for the reply as long as the channel is open. The caller has a timer of its own.
    pub(crate) async fn received_at_last(self) -> lapin::Result<T> {
        self.reply.await
    }
}

impl<T: 'static> Reply<T> {
    pub(crate) fn ignored(self) -> Reply<()> {
        let reply = self.reply.map(|reply| reply.map(drop)).boxed();
        Reply { reply, limit: self.limit, limits: self.limits }
    }
}

impl AmqpChannel {
    pub(super) async fn open(connection: &Connection, limit: ReplyLimit) -> lapin::Result<Self> {
        let channel = limit.wait(connection.create_channel().boxed(), 1).await?;
        Ok(Self { channel, limit })
    }

    pub(super) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.limit.timeout = timeout;
        self
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &lapin::Channel {
        &self.channel
    }

    pub(crate) fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    /// Sends a request at once: the client library sends on the first poll.
    fn send<T, F>(&self, limits: u32, request: impl FnOnce(lapin::Channel) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = lapin::Result<T>> + Send + 'static,
    {
        let mut reply = request(self.channel.clone()).boxed();
        let reply = match (&mut reply).now_or_never() {
            Some(result) => ready(result).boxed(),
            None => reply,
        };
        Reply { reply, limit: self.limit.clone(), limits }
    }

    pub(crate) async fn confirm_select(&self) -> lapin::Result<()> {
        let request = async |channel: lapin::Channel| {
            channel.confirm_select(ConfirmSelectOptions::default()).await
        };
        self.send(1, request).received().await
    }

    /// Limits the unacknowledged deliveries of each consumer that starts after this.
    pub(crate) async fn qos(&self, prefetch: u16) -> lapin::Result<()> {
        let request = async move |channel: lapin::Channel| {
            channel.basic_qos(prefetch, BasicQosOptions::default()).await
        };
        self.send(1, request).received().await
    }

    /// Starts a consumer. If that fails, takes too long, or is dropped, the channel closes.
    pub(crate) async fn consume(
        &self,
        queue: ShortString,
        arguments: FieldTable,
    ) -> lapin::Result<Consumer> {
        let options = BasicConsumeOptions::default();
        let request = async move |channel: lapin::Channel| {
            channel.basic_consume(queue, "".into(), options, arguments).await
        };
        // The broker may have started the consumer, which would keep the channel open.
        let guard = CloseOnDrop(Some(self.clone()));
        let consumer = self.send(1, request).received().await?;
        guard.disarm();
        Ok(consumer)
    }

    /// Acknowledges a delivery, or all up to it.
    pub(crate) async fn ack(&self, tag: u64, multiple: bool) -> lapin::Result<()> {
        let options = BasicAckOptions { multiple };
        let request = async move |channel: lapin::Channel| channel.basic_ack(tag, options).await;
        self.send(1, request).received().await
    }

    /// Publishes a message. The reply is the confirmation, if confirms are on.
    pub(crate) async fn publish(
        &self,
        exchange: ShortString,
        routing_key: ShortString,
        mandatory: bool,
        body: &[u8],
        properties: BasicProperties,
    ) -> lapin::Result<Reply<Confirmation>> {
        let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
        let publishing =
            self.channel.basic_publish(exchange, routing_key, options, body, properties).boxed();
        let confirm = self.limit.wait(publishing, 1).await?;
        Ok(Reply { reply: confirm.boxed(), limit: self.limit.clone(), limits: 1 })
    }

    /// Declares a durable exchange, or only checks that it exists.
    pub(crate) fn declare_exchange(
        &self,
        name: ShortString,
        kind: ExchangeKind,
        arguments: FieldTable,
        passive: bool,
    ) -> Reply<()> {
        let options =
            ExchangeDeclareOptions { passive, durable: true, ..ExchangeDeclareOptions::default() };
        self.send(DECLARE_LIMITS, async move |channel: lapin::Channel| {
            channel.exchange_declare(name, kind, options, arguments).await
        })
    }

    /// Declares a queue. The reply is the number of its messages.
    pub(crate) fn declare_queue(
        &self,
        name: ShortString,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Reply<u32> {
        self.send(DECLARE_LIMITS, async move |channel: lapin::Channel| {
            let declared = channel.queue_declare(name, options, arguments).await?;
            Ok(declared.message_count())
        })
    }

    pub(crate) fn delete_queue(&self, name: ShortString) -> Reply<()> {
        self.send(DECLARE_LIMITS, async move |channel: lapin::Channel| {
            channel.queue_delete(name, QueueDeleteOptions::default()).await.map(drop)
        })
    }

    /// Declares a queue of this connection. It is deleted with its last consumer, and after
    /// `expires` without one.
    pub(crate) async fn declare_exclusive_queue(
        &self,
        name: ShortString,
        expires: Duration,
    ) -> lapin::Result<()> {
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let mut arguments = FieldTable::default();
        let expires = i64::try_from(expires.as_millis()).unwrap_or(i64::MAX).max(1);
        arguments.insert("x-expires".into(), expires.into());
        self.declare_queue(name, options, arguments).received().await.map(drop)
    }

    pub(crate) fn bind_queue(
        &self,
        exchange: ShortString,
        queue: ShortString,
        key: ShortString,
    ) -> Reply<()> {
        self.send(DECLARE_LIMITS, async move |channel: lapin::Channel| {
            let options = QueueBindOptions::default();
            channel.queue_bind(queue, exchange, key, options, FieldTable::default()).await
        })
    }

    pub(crate) fn bind_exchange(
        &self,
        from: ShortString,
        to: ShortString,
        key: ShortString,
    ) -> Reply<()> {
        self.send(DECLARE_LIMITS, async move |channel: lapin::Channel| {
            let options = ExchangeBindOptions::default();
            channel.exchange_bind(to, from, key, options, FieldTable::default()).await
        })
    }

    /// Waits a moment for the reply.
    pub(crate) async fn close(self) {
        if self.is_open() {
            let closing = self.channel.close(200, "done".into());
            tokio::time::timeout(CLOSE_TIMEOUT, closing).await.ok();
        }
    }
}
