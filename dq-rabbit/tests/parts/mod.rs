//! Tests of internal modules on a real broker. lib.rs compiles this folder into the crate's unit
//! tests, so `crate` is dq-rabbit.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests also act on the broker without the backend, as other programs do"
)]

mod connection;
mod errors;
mod fixture;
mod format;
mod generations;
mod ladder;
mod topology;
