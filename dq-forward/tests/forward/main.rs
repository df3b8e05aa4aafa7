//! Forwards and ingresses with real servers.

mod amqp;
mod broker;
mod common;
mod http;
mod ingress;
mod receiver;
mod redis;
mod settings;
mod signatures;
