//! The checks of the HTTP API, of schedules and of security, with a store in a file of SQLite.
#![allow(clippy::duplicate_mod, reason = "each of the files is also a test binary of its own")]

#[path = "api.rs"]
mod api;
#[path = "schedules.rs"]
mod schedules;
#[path = "security.rs"]
mod security;
