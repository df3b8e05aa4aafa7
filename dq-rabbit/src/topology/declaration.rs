//! The declaration of one exchange, queue or binding.

use futures_util::future::{BoxFuture, FutureExt, ready};
use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use crate::error::Permission;

/// An exchange, queue or binding to declare.
#[derive(Debug, Clone)]
pub(super) enum Declaration {
    /// Name, type and arguments.
    Exchange(ShortString, ExchangeKind, FieldTable),
    /// Name and arguments.
    Queue(ShortString, FieldTable),
    /// Exchange, queue and binding key.
    QueueBinding(ShortString, ShortString, ShortString),
    /// Source exchange, destination exchange and binding key.
    ExchangeBinding(ShortString, ShortString, ShortString),
}

impl Declaration {
    /// The permission that this declaration needs on an object, named like `queue 'q'`.
    ///
    /// A binding needs to read from its source and to write to its destination; an argument that
    /// names an exchange needs to write to it.
    pub(super) fn required_permission(&self, object: &str) -> Permission {
        let names = |kind: &str, name: &ShortString| object.contains(&format!("{kind} '{name}'"));
        match self {
            Self::Exchange(name, ..) if names("exchange", name) => Permission::Configure,
            Self::Queue(name, _) if names("queue", name) => Permission::Configure,
            Self::QueueBinding(from, ..) | Self::ExchangeBinding(from, ..)
                if names("exchange", from) =>
            {
                Permission::Read
            }
            _ => Permission::Write,
        }
    }

    /// Sends the request. The returned future waits for the reply. With `passive`, the broker only
    /// checks that the object exists.
    pub(super) fn send(
        &self,
        channel: &Channel,
        passive: bool,
    ) -> BoxFuture<'static, lapin::Result<()>> {
        let mut reply = self.clone().request(channel.clone(), passive).boxed();
        // The client library sends on the first poll.
        match (&mut reply).now_or_never() {
            Some(result) => ready(result).boxed(),
            None => reply,
        }
    }

    async fn request(self, channel: Channel, passive: bool) -> lapin::Result<()> {
        let no_arguments = FieldTable::default();
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
            Self::QueueBinding(exchange, queue, key) => {
                channel
                    .queue_bind(queue, exchange, key, QueueBindOptions::default(), no_arguments)
                    .await
            }
            Self::ExchangeBinding(from, to, key) => {
                channel
                    .exchange_bind(to, from, key, ExchangeBindOptions::default(), no_arguments)
                    .await
            }
        }
    }
}

impl std::fmt::Display for Declaration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exchange(name, ..) => write!(f, "exchange {name}"),
            Self::Queue(name, ..) => write!(f, "queue {name}"),
            Self::QueueBinding(from, to, key) | Self::ExchangeBinding(from, to, key) => {
                write!(f, "binding {key} from {from} to {to}")
            }
        }
    }
}
