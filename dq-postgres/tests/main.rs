//! Tests on private PostgreSQL servers.

mod common;
mod horizon;
mod order;
mod plans;
