//! Connections to the broker: address, TLS, and a connection that is reopened when it breaks.

mod address;
mod broker;
mod channel;
mod connection;
mod socket;

pub(crate) use broker::{Broker, BrokerSettings};
pub(crate) use channel::{AmqpChannel, Reply};
pub(crate) use connection::AmqpConnection;
