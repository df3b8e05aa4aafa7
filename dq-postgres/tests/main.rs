//! Tests on private PostgreSQL servers.

mod common;
mod connect;
mod cuts;
mod failures;
mod frozen;
mod fuzz;
mod groups;
mod horizon;
mod limits;
mod order;
mod plans;
mod pooler;
mod races;
mod rights;
mod schema;
mod sql_api;
mod statement;
