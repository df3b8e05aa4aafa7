//! Tests on private PostgreSQL servers.

mod common;
mod connect;
mod horizon;
mod order;
mod plans;
mod schema;
