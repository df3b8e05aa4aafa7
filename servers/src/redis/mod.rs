//! Private Redis servers.

mod cluster;
mod options;
mod sentinel;
mod server;

pub use cluster::RedisCluster;
pub use options::{RedisOptions, shared_redis};
pub use sentinel::Sentinel;
pub use server::Redis;
