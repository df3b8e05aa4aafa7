//! Tests of the HTTP API, its events and its security, with the router in actix-web.

#[path = "api.rs"]
mod api;
#[path = "live.rs"]
mod live;
#[path = "security.rs"]
mod security;
mod support;
