//! Connections: the address, the connection for commands, and the one for messages.

mod address;
mod link;
mod server;
mod subscriber;
mod url;

pub(crate) use crate::error::Effect;
pub(crate) use link::{CommandError, Link};
pub(crate) use server::{Server, ServerClient, ServerSettings};
pub(crate) use subscriber::{OnMessage, Source, Subscriber};
pub(crate) use url::{ADDRESS_OPTIONS, as_redis};
