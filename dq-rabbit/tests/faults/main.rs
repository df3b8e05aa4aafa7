//! Tests of the backend on real brokers that fail, refuse, restart and disconnect.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests also act on the broker without the backend, as other programs do"
)]

mod ack_timeout;
mod alarm;
mod check;
mod clocks;
mod cluster;
mod connect;
mod connection_loss;
mod crash;
mod decoupling;
mod deleted;
mod fixture;
mod foreign;
mod full;
mod history;
mod limits;
mod payloads;
mod read_ahead;
mod republish;
mod restart_under_load;
mod rights;
mod truncated;
mod two_processes;
