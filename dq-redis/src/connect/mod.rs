//! How the server is reached: its address, one connection for commands, one for what listens.

mod address;
mod link;
mod server;
mod subscriber;
mod url;

pub(crate) use address::Address;
pub(crate) use link::{Effect, Failure, Link};
pub(crate) use server::{Server, ServerSettings, Target};
pub(crate) use subscriber::{OnMessage, Source, Subscriber};
pub(crate) use url::{as_redis, fields_of};
