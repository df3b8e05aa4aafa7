//! Private RabbitMQ servers.

mod cluster;
mod cluster_identity;
mod installation;
mod options;
mod server;
mod tools;

pub use cluster::RabbitCluster;
pub(crate) use installation::install;
pub use options::{RabbitOptions, shared_rabbitmq};
pub use server::RabbitMq;
