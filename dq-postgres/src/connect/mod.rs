//! Connections to the server.

mod pool;
mod server;
mod tls;

pub(crate) use pool::{Param, Pool, Statement};
pub(crate) use server::{ADDRESS_OPTIONS, Server, ServerSettings};
pub(crate) use tls::TlsFiles;
