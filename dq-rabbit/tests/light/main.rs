//! Processes without a replica, and those that serve them.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests also act on the broker without the backend, as other programs do"
)]

mod calls;
mod fixture;
mod kills;
mod limits;
mod turns;
