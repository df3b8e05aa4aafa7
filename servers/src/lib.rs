//! Private servers for tests and benchmarks: own ports, own directories, gone with the process that
//! started them.
//!
//! ```no_run
//! use dq_servers::{RabbitMq, Redis, Reply};
//!
//! let redis = Redis::options().aof().start();
//! assert!(redis.command(&["SET", "k", "v"]).is_ok());
//! redis.kill(); // like a crash
//! redis.restart();
//! assert_eq!(redis.command(&["GET", "k"]).text(), "v");
//!
//! let rabbit = RabbitMq::options().management().start();
//! println!("{} {}", rabbit.url(), rabbit.ctl(&["list_queues"]));
//! ```
//!
//! Everything here blocks and panics with a reason when something is wrong: it is the set-up of
//! tests, which have nobody to hand an error to. Only [`install`] answers with errors.

pub mod install;

mod debian;
mod port;
mod process;
mod program;
mod rabbitmq;
mod redis;
mod resp;
mod tls;
mod watchdog;

pub use rabbitmq::{RabbitCluster, RabbitMq, RabbitOptions, shared_rabbitmq};
pub use redis::{Redis, RedisCluster, RedisOptions, Sentinel, shared_redis};
pub use resp::{Connection, Reply};
