//! How the broker is reached: its address, how a connection is made, and one that is kept up.

mod address;
mod cut;
mod link;
mod server;
mod url;

pub(crate) use link::Link;
pub(crate) use server::{Server, ServerSettings, check};
pub(crate) use url::fields_of;
