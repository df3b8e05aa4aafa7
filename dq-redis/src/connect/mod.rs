//! Connections to Redis: one for commands (`link.rs`), one for published messages
//! (`subscriber.rs`).

mod address;
mod link;
mod server;
mod subscriber;
mod url;

pub(crate) use link::{CommandError, Link};
pub(crate) use server::{Server, ServerClient, ServerSettings, connect};
pub(crate) use subscriber::{OnMessage, Source, Subscriber, can_subscribe};
pub(crate) use url::{ADDRESS_OPTIONS, as_redis};
