//! HTTP API and security tests, with the router in actix-web.

#[path = "api.rs"]
mod api;
#[path = "security.rs"]
mod security;
mod support;
