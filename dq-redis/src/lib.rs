//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.

mod backend;
mod batch;
mod browse;
mod check;
mod claim;
mod config;
mod connect;
mod error;
mod expiry;
mod handle;
mod import;
mod inspect;
mod keys;
mod operate;
mod record;
mod redisson;
mod reply;
mod schedule;
mod script;
mod settle;
mod store;
mod wake;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use expiry::{Notifications, RedisExpiryBackend, RedisExpiryConfig};
pub use import::{RedissonSource, ZsetSource};
pub use redisson::{Codec, Format, Index, OrderList, RedissonBackend, RedissonConfig};
