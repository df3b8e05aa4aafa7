//! Connections to the broker: address, TLS, and a connection that is reopened when it breaks.

mod address;
mod broker;
mod connection;
mod socket;

pub(crate) use broker::{Broker, BrokerSettings, validate};
pub(crate) use connection::AmqpConnection;
