//! HTTP API and security tests, with the router in actix-web.
#![allow(clippy::duplicate_mod, reason = "each of the files is also a test binary of its own")]

#[path = "api.rs"]
mod api;
#[path = "security.rs"]
mod security;
