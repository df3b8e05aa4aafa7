//! Delayed jobs, typed end to end, on the store you already run.
//!
//! ```
//! use dq::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct UnpaidOrder {
//!     id: u64,
//! }
//!
//! #[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
//! async fn order_timeout(order: UnpaidOrder) -> HandlerResult {
//!     println!("order {} was not paid in time", order.id);
//!     Ok(Outcome::Done)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! let dq = Dq::connect("memory:").await?; // or "sqlite://jobs.db"
//! dq.schedule::<order_timeout>(UnpaidOrder { id: 1001 })
//!     .after(15.minutes())
//!     .key("order-1001")
//!     .await?;
//! assert_eq!(dq.cancel::<order_timeout>("order-1001").await?, Cancelled::Cancelled);
//!
//! let shutdown = async {}; // in a program: Ctrl-C
//! dq.runner().run_until(shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The backend is chosen by URL or in `dq.toml` ([`config::Config`]); backends register themselves
//! when their crate is linked, which this one sees to for those that are enabled as features:
//!
//! | Feature | `type` in `dq.toml` | URL | Settings |
//! |---|---|---|---|
//! | none | `memory` | `memory:` | none |
//! | `sqlite` (default), `sqlite-system` | `sqlite` | `sqlite://jobs.db` | `dq::sqlite::SqliteConfig` |
//! | `redis` | `redis`, `redisson`, `redis-expiry` | `redis://host/0`, `redisson://…`, `redis-expiry://…` | `dq::redis::RedisConfig`, `RedissonConfig`, `RedisExpiryConfig` |
//! | `rabbitmq` | `rabbitmq` | `amqp://user:password@host/vhost` | `dq::rabbit::RabbitConfig` |

pub mod prelude;

#[doc(inline)]
pub use dq_core::*;
#[doc(inline)]
pub use dq_macros::{QueueCode, delay_handler};
#[cfg(feature = "rabbitmq")]
pub use dq_rabbit as rabbit;
#[cfg(feature = "redis")]
pub use dq_redis as redis;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub use dq_sqlite as sqlite;

#[doc(hidden)]
pub use dq_core::__private;
