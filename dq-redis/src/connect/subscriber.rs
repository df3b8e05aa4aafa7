//! The connection for published messages: one for all channels, replaced when it breaks. Messages
//! published while it is broken are lost. No part of the crate relies on messages alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{CONNECT_TIMEOUT, Server};
use crate::error::is_refused;

const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);

/// A server that vanishes does not close the connection.
const PING_INTERVAL: Duration = Duration::from_secs(15);

pub(crate) trait OnMessage: Send + Sync + 'static {
    fn message(&self, channel: &str, payload: &[u8]);
    fn connected(&self);
}

pub(crate) enum Source {
    /// Any node: each cluster node delivers all messages.
    Any(Arc<Server>),
    /// This node only: keyspace notifications reach only the key's own node.
    Node(Box<Client>),
}

impl Source {
    fn shown(&self) -> String {
        match self {
            Self::Any(server) => server.address.shown(),
            Self::Node(client) => client.get_connection_info().addr().to_string(),
        }
    }

    async fn clients(&self) -> redis::RedisResult<Vec<Client>> {
        match self {
            Self::Any(server) => server.pubsub_clients().await,
            Self::Node(client) => Ok(vec![Client::clone(client)]),
        }
    }
}

/// The task drops `done` after the server's confirmation or a failed attempt to connect.
struct SubscribeRequest {
    channels: Vec<String>,
    done: oneshot::Sender<()>,
}

/// The task ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Subscriber {
    requests: mpsc::UnboundedSender<SubscribeRequest>,
    is_connected: Arc<AtomicBool>,
    end: DropGuard,
}

impl Subscriber {
    pub(crate) fn start(source: Source, on_message: Arc<dyn OnMessage>) -> Self {
        let (requests, received) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let is_connected = Arc::new(AtomicBool::new(false));
        let task = SubscriberTask {
            source,
            on_message,
            is_connected: Arc::clone(&is_connected),
            channels: HashSet::new(),
            requests: received,
        };
        tokio::spawn(end.clone().run_until_cancelled_owned(task.run()));
        Self { requests, is_connected, end: end.drop_guard() }
    }

    pub(crate) fn close(&self) {
        self.end.token().cancel();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Acquire)
    }

    /// Returns after the server's confirmation or a failed attempt to connect. After a failure, the
    /// task subscribes when it reaches the server.
    pub(crate) async fn subscribe(&self, channels: Vec<String>) {
        let (done, finished) = oneshot::channel();
        if self.requests.send(SubscribeRequest { channels, done }).is_ok() {
            finished.await.ok();
        }
    }
}

struct SubscriberTask {
    source: Source,
    on_message: Arc<dyn OnMessage>,
    is_connected: Arc<AtomicBool>,
    channels: HashSet<String>,
    requests: mpsc::UnboundedReceiver<SubscribeRequest>,
}

impl SubscriberTask {
    async fn run(mut self) {
        let Some(first) = self.requests.recv().await else { return };
        self.channels.extend(first.channels);
        let mut waiting = vec![first.done];
        let mut delay = FIRST_DELAY;
        let mut is_outage_logged = false;
        loop {
            match subscribe(&self.source, &self.channels).await {
                Ok((mut sink, mut stream)) => {
                    delay = FIRST_DELAY;
                    if std::mem::take(&mut is_outage_logged) {
                        let server = self.source.shown();
                        tracing::info!(%server, "Redis: the connection for wake-ups is back");
                    }
                    self.is_connected.store(true, Ordering::Release);
                    self.on_message.connected();
                    waiting.clear();
                    if self.receive(&mut sink, &mut stream).await.is_none() {
                        return;
                    }
                    self.is_connected.store(false, Ordering::Release);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_outage_logged, true) {
                        let server = self.source.shown();
                        tracing::warn!(
                            %server, %error, "Redis: no connection for wake-ups; jobs are found by timers"
                        );
                    }
                    waiting.clear();
                }
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                request = self.requests.recv() => {
                    let Some(request) = request else { return };
                    self.channels.extend(request.channels);
                    waiting.push(request.done);
                }
            }
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    /// `None` if the subscriber was dropped.
    async fn receive(&mut self, sink: &mut PubSubSink, stream: &mut PubSubStream) -> Option<()> {
        loop {
            tokio::select! {
                message = stream.next() => {
                    let Some(message) = message else { return Some(()) };
                    self.on_message
                        .message(message.get_channel_name(), message.get_payload_bytes());
                }
                request = self.requests.recv() => {
                    let request = request?;
                    let mut new = request.channels;
                    new.retain(|channel| self.channels.insert(channel.clone()));
                    if !new.is_empty() {
                        // The time limit keeps a frozen server from blocking the caller.
                        let confirmed = tokio::time::timeout(CONNECT_TIMEOUT, sink.subscribe(new));
                        if !matches!(confirmed.await, Ok(Ok(()))) {
                            return Some(());
                        }
                    }
                    drop(request.done);
                }
                () = tokio::time::sleep(PING_INTERVAL) => {
                    let pong = tokio::time::timeout(CONNECT_TIMEOUT, sink.ping::<redis::Value>());
                    match pong.await {
                        Ok(Ok(_)) => {}
                        // A refusal shows that the server is there, too.
                        Ok(Err(error)) if is_refused(&error) => {}
                        _ => return Some(()),
                    }
                }
            }
        }
    }
}

/// Errors: The error of the last server that was tried.
pub(crate) async fn can_subscribe(server: &Arc<Server>, channel: &str) -> redis::RedisResult<()> {
    let source = Source::Any(Arc::clone(server));
    subscribe(&source, [channel]).await.map(drop)
}

async fn subscribe(
    source: &Source,
    channels: impl IntoIterator<Item = impl AsRef<str>>,
) -> redis::RedisResult<(PubSubSink, PubSubStream)> {
    let channels: Vec<String> =
        channels.into_iter().map(|channel| channel.as_ref().to_owned()).collect();
    let mut failed = None;
    for client in with_timeout(source.clients()).await? {
        // A silent server leaves time for the next.
        let subscribed = with_timeout(async {
            let mut connection = client.get_async_pubsub().await?;
            connection.subscribe(&channels).await?;
            Ok(connection.split())
        });
        match subscribed.await {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.expect("there is at least one server"))
}

async fn with_timeout<T>(
    step: impl Future<Output = redis::RedisResult<T>> + Send,
) -> redis::RedisResult<T> {
    match tokio::time::timeout(CONNECT_TIMEOUT, step.boxed()).await {
        Ok(done) => done,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}
