//! HTTP API, schedule and security tests on a SQLite file.
#![allow(clippy::duplicate_mod, reason = "each of the files is also a test binary of its own")]

#[path = "api.rs"]
mod api;
#[path = "schedules.rs"]
mod schedules;
#[path = "security.rs"]
mod security;
