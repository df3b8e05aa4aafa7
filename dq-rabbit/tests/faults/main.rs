//! Tests of the backend on real brokers that fail, refuse, restart and disconnect.

mod ack_timeout;
mod alarm;
mod clocks;
mod cluster;
mod connect;
mod connection_loss;
mod crash;
mod deleted;
mod fixture;
mod foreign;
mod republish;
mod restart_under_load;
mod truncated;
mod two_processes;
