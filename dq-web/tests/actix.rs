//! The checks of the HTTP API and of security, with the router mounted in actix-web.
#![allow(clippy::duplicate_mod, reason = "each of the files is also a test binary of its own")]

#[path = "api.rs"]
mod api;
#[path = "security.rs"]
mod security;
