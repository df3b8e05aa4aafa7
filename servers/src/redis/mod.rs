//! Private Redis servers.

mod cluster;
mod options;
mod sentinel;
mod server;

use crate::package::Package;

/// Redis, and `openssl` for TLS certificates.
pub(crate) const PACKAGE: Package = Package {
    directory: "redis",
    programs: &[("redis-server", "--version"), ("redis-cli", "--version"), ("openssl", "version")],
    debian_packages: &["redis-server", "redis-tools", "openssl"],
};

pub use cluster::RedisCluster;
pub use options::{RedisOptions, shared_redis};
pub use sentinel::Sentinel;
pub use server::Redis;
