//! The HTTP API as the commands use it: of a server, or of an open store within this process.

mod api;
mod client;
mod local;
mod open;
mod remote;
mod request;
mod runtime;

pub(crate) use api::due_text;
pub(crate) use client::Source;
#[cfg(any(test, feature = "postgres", feature = "redis"))]
pub(crate) use local::Local;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use open::open_store;
pub(crate) use open::{open, open_server, store_settings};
pub(crate) use runtime::runtime;
