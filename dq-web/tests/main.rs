//! All integration tests in one program, because linking takes long.

mod api;
mod browser;
mod check;
mod client;
mod cost;
mod frozen;
mod live;
mod openapi;
mod pages;
mod schedules;
mod security;
mod support;
mod work;
