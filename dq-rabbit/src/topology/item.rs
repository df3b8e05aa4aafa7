//! One exchange, queue or binding, and how it is declared.

use futures_util::future::{BoxFuture, FutureExt, ready};
use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use crate::error::Right;

/// One thing to declare.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Exchange(ShortString, ExchangeKind, FieldTable),
    Queue(ShortString, FieldTable),
    /// From an exchange to a queue, by a key.
    Bind(ShortString, ShortString, ShortString),
    /// From an exchange to an exchange, by a key.
    Chain(ShortString, ShortString, ShortString),
}

impl Item {
    /// The right that is lacking if this is refused with that text: a binding needs that of reading
    /// where messages come from and of writing where they go, and so does an argument that names an
    /// exchange.
    pub(super) fn lacking(&self, text: &str) -> Right {
        let names = |kind: &str, name: &ShortString| text.contains(&format!("{kind} '{name}'"));
        match self {
            Self::Exchange(name, ..) if names("exchange", name) => Right::Configure,
            Self::Queue(name, _) if names("queue", name) => Right::Configure,
            Self::Bind(from, ..) | Self::Chain(from, ..) if names("exchange", from) => Right::Read,
            _ => Right::Write,
        }
    }

    /// Sends it; what is returned waits for the answer.
    pub(super) fn send(
        &self,
        channel: &Channel,
        passive: bool,
    ) -> BoxFuture<'static, lapin::Result<()>> {
        let mut answer = self.clone().ask(channel.clone(), passive).boxed();
        // The client sends when it is first polled, and remembers the answer until the next time.
        match (&mut answer).now_or_never() {
            Some(known) => ready(known).boxed(),
            None => answer,
        }
    }

    async fn ask(self, channel: Channel, passive: bool) -> lapin::Result<()> {
        let none = FieldTable::default();
        match self {
            Self::Exchange(name, kind, arguments) => {
                let options = ExchangeDeclareOptions {
                    passive,
                    durable: true,
                    ..ExchangeDeclareOptions::default()
                };
                channel.exchange_declare(name, kind, options, arguments).await
            }
            Self::Queue(name, arguments) => {
                let options = QueueDeclareOptions {
                    passive,
                    durable: true,
                    ..QueueDeclareOptions::default()
                };
                channel.queue_declare(name, options, arguments).await.map(drop)
            }
            Self::Bind(exchange, queue, key) => {
                channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), none).await
            }
            Self::Chain(from, to, key) => {
                channel.exchange_bind(to, from, key, ExchangeBindOptions::default(), none).await
            }
        }
    }
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exchange(name, ..) => write!(f, "exchange {name}"),
            Self::Queue(name, ..) => write!(f, "queue {name}"),
            Self::Bind(from, to, key) | Self::Chain(from, to, key) => {
                write!(f, "binding {key} from {from} to {to}")
            }
        }
    }
}
