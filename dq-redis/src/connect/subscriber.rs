//! The connection that listens: one for all channels, made anew when it breaks.
//!
//! What is published while it is broken is lost, which is why a new connection says so
//! ([`OnMessage::resumed`]), and why nobody relies on messages alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use redis::Client;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::{CONNECT_TIMEOUT, Server};

/// Between two attempts to connect.
const FIRST_REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// A connection that carries nothing is asked for a sign of life so often: one that is cut without a
/// word would else be listened to for ever.
const SILENCE: Duration = Duration::from_secs(15);

/// Who gets the messages.
pub(crate) trait OnMessage: Send + Sync + 'static {
    /// Something was published.
    fn message(&self, channel: &str, payload: &[u8]);
    /// The connection is there, for the first time or again; messages may have been lost.
    fn resumed(&self);
    /// The connection broke.
    fn lost(&self) {}
}

/// Whom to listen to.
pub(crate) enum Source {
    /// Any server that passes on what is published: in a cluster each node does.
    Any(Arc<Server>),
    /// This one only: what a node says about its own keys is passed on by no other.
    Node(Box<Client>),
}

impl Source {
    /// For a message.
    fn shown(&self) -> String {
        match self {
            Self::Any(server) => server.address.shown(),
            Self::Node(client) => client.get_connection_info().addr().to_string(),
        }
    }

    /// Who is to be tried, one after the other.
    async fn clients(&self) -> redis::RedisResult<Vec<Client>> {
        match self {
            Self::Any(server) => server.messenger().await,
            Self::Node(client) => Ok(vec![Client::clone(client)]),
        }
    }
}

/// A wish to hear a channel, answered once the server has agreed, or when it cannot be reached.
struct Wish {
    channels: Vec<String>,
    heard: oneshot::Sender<()>,
}

/// The connection that listens. It ends when this is closed or dropped.
#[derive(Debug)]
pub(crate) struct Subscriber {
    wishes: mpsc::UnboundedSender<Wish>,
    end: CancellationToken,
    _end: DropGuard,
}

impl Subscriber {
    /// Starts to listen, to no channel yet.
    pub(crate) fn start(source: Source, on_message: Arc<dyn OnMessage>) -> Self {
        let (wishes, asked) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let listener = Listener { source, on_message, channels: HashSet::new(), asked };
        tokio::spawn(end.clone().run_until_cancelled_owned(listener.listen()));
        Self { wishes, end: end.clone(), _end: end.drop_guard() }
    }

    /// Ends the connection; nothing is heard any more.
    pub(crate) fn close(&self) {
        self.end.cancel();
    }

    /// Hears these channels from now on. Returns once the server has agreed, or when it cannot be
    /// reached at the moment.
    pub(crate) async fn hear(&self, channels: Vec<String>) {
        let (heard, agreed) = oneshot::channel();
        if self.wishes.send(Wish { channels, heard }).is_ok() {
            agreed.await.ok();
        }
    }
}

struct Listener {
    source: Source,
    on_message: Arc<dyn OnMessage>,
    channels: HashSet<String>,
    asked: mpsc::UnboundedReceiver<Wish>,
}

impl Listener {
    async fn listen(mut self) {
        // Nobody listens yet: there is no need for a connection.
        let Some(first) = self.asked.recv().await else { return };
        self.channels.extend(first.channels);
        let mut waiting = vec![first.heard];
        let mut rest = FIRST_REST;
        // Told once, however many attempts it takes.
        let mut out = false;
        loop {
            match self.connect().await {
                Ok((mut sink, mut stream)) => {
                    rest = FIRST_REST;
                    if std::mem::take(&mut out) {
                        let server = self.source.shown();
                        tracing::info!(%server, "Redis: the connection to listen on is back");
                    }
                    self.on_message.resumed();
                    waiting.clear();
                    if self.converse(&mut sink, &mut stream).await.is_none() {
                        return;
                    }
                    self.on_message.lost();
                }
                Err(error) => {
                    if !std::mem::replace(&mut out, true) {
                        let server = self.source.shown();
                        tracing::warn!(
                            %server, %error, "Redis: no connection to listen on; timers go on"
                        );
                    }
                    waiting.clear();
                }
            }
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                wish = self.asked.recv() => {
                    let Some(wish) = wish else { return };
                    self.channels.extend(wish.channels);
                    waiting.push(wish.heard);
                }
            }
            rest = (rest * 2).min(LONGEST_REST);
        }
    }

    async fn connect(&self) -> redis::RedisResult<(PubSubSink, PubSubStream)> {
        let mut failed = None;
        for client in in_time(self.source.clients()).await? {
            // Each in its own time: one that is silent must not keep us from the next.
            match in_time(self.connect_to(&client)).await {
                Ok(connected) => return Ok(connected),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.expect("there is at least one server"))
    }

    async fn connect_to(&self, client: &Client) -> redis::RedisResult<(PubSubSink, PubSubStream)> {
        let mut connection = client.get_async_pubsub().await?;
        let channels: Vec<&String> = self.channels.iter().collect();
        connection.subscribe(channels).await?;
        Ok(connection.split())
    }

    /// Until the connection breaks; `None` when nobody can wish for more.
    async fn converse(&mut self, sink: &mut PubSubSink, stream: &mut PubSubStream) -> Option<()> {
        loop {
            tokio::select! {
                message = stream.next() => {
                    let message = match message {
                        Some(message) => message,
                        None => return Some(()),
                    };
                    self.on_message
                        .message(message.get_channel_name(), message.get_payload_bytes());
                }
                wish = self.asked.recv() => {
                    let wish = wish?;
                    let mut new = wish.channels;
                    new.retain(|channel| self.channels.insert(channel.clone()));
                    if !new.is_empty() {
                        // A server that is frozen must not keep who listens waiting.
                        let agreed = tokio::time::timeout(CONNECT_TIMEOUT, sink.subscribe(new));
                        if !matches!(agreed.await, Ok(Ok(()))) {
                            return Some(());
                        }
                    }
                    drop(wish.heard);
                }
                () = tokio::time::sleep(SILENCE) => {
                    let alive = tokio::time::timeout(CONNECT_TIMEOUT, sink.ping::<redis::Value>());
                    if !matches!(alive.await, Ok(Ok(_))) {
                        return Some(());
                    }
                }
            }
        }
    }
}

async fn in_time<T>(
    step: impl Future<Output = redis::RedisResult<T>> + Send,
) -> redis::RedisResult<T> {
    // Boxed, since the futures of a client that connects are large.
    match tokio::time::timeout(CONNECT_TIMEOUT, step.boxed()).await {
        Ok(done) => done,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}
