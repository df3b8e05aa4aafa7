//! Private servers for tests and benchmarks, each with its own port and directory. A server ends
//! with the process that started it.
//!
//! ```no_run
//! use dq_servers::{RabbitMq, Redis, Reply};
//!
//! let redis = Redis::options().aof().start();
//! assert!(redis.command(&["SET", "k", "v"]).is_ok());
//! redis.kill(); // simulates a crash
//! redis.restart();
//! assert_eq!(redis.command(&["GET", "k"]).text(), "v");
//!
//! let rabbit = RabbitMq::options().management().start();
//! println!("{} {}", rabbit.url(), rabbit.ctl(&["list_queues"]));
//! ```
//!
//! All functions block, and panic with a reason on failure, because tests use them in their set-up.
//! Only [`install`] and the `try_…` methods return errors.

pub mod install;

mod browser;
mod debian;
mod maven;
mod nginx;
mod npm;
mod once;
mod package;
mod port;
mod postgres;
mod process;
mod program;
mod prometheus;
mod pypi;
mod rabbitmq;
mod redis;
mod resp;
mod tls;
mod unprivileged;
mod watchdog;

pub use browser::Browser;
pub use maven::{java_program, maven_lock};
pub use nginx::Nginx;
pub use npm::{newer_node, node_packages};
pub use port::free as free_port;
pub use postgres::{PgBouncer, Postgres, PostgresOptions, shared_postgres};
pub use prometheus::promtool;
pub use pypi::{PythonPackage, python_package};
pub use rabbitmq::{RabbitCluster, RabbitMq, RabbitOptions, shared_rabbitmq};
pub use redis::{Redis, RedisCluster, RedisOptions, Sentinel, shared_redis};
pub use resp::{Connection, Reply};
pub use tls::create_certificates;
