//! All integration tests in one program, because linking is what takes long.

mod api;
mod browser;
mod client;
mod cost;
mod pages;
mod schedules;
mod security;
mod support;
