//! Exchanges, queues and bindings that can be declared.

use lapin::ExchangeKind;
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};

use crate::connect::{AmqpChannel, Reply};
use crate::error::Permission;

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
    /// The permission that this needs on an object like `queue 'q'`.
    ///
    /// A binding reads from its source and writes to its destination; an argument that names an
    /// exchange writes to it.
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

    /// Whether the broker can be asked for it. Bindings cannot.
    pub(super) fn is_checkable(&self) -> bool {
        matches!(self, Self::Exchange(..) | Self::Queue(..))
    }

    /// With `passive`, the broker only checks that the object exists.
    pub(super) fn send(&self, channel: &AmqpChannel, passive: bool) -> Reply<()> {
        match self.clone() {
            Self::Exchange(name, kind, arguments) => {
                channel.declare_exchange(name, kind, arguments, passive)
            }
            Self::Queue(name, arguments) => {
                let options = QueueDeclareOptions { passive, ..QueueDeclareOptions::durable() };
                channel.declare_queue(name, options, arguments).ignored()
            }
            Self::QueueBinding(exchange, queue, key) => channel.bind_queue(exchange, queue, key),
            Self::ExchangeBinding(from, to, key) => channel.bind_exchange(from, to, key),
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
