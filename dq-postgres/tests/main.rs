//! Tests on private PostgreSQL servers.

mod common;
mod connect;
mod horizon;
mod order;
mod plans;
mod rights;
mod schema;
mod sql_api;
