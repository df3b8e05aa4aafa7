//! Forwards due jobs to other systems, and turns their messages into jobs: `[queues.NAME.forward]`
//! and `[[ingress]]`.
//!
//! ```toml
//! [backend]
//! type = "sqlite"
//! path = "jobs.db"
//!
//! [queues.BILLING.forward]
//! type = "http"
//! url = "https://billing.example.com/due"
//! secrets = ["${BILLING_WEBHOOK_SECRET}"]
//!
//! [queues.SHIPPING.forward]
//! type = "amqp"
//! url = "amqp://user:${AMQP_PASSWORD}@rabbit/shop"
//! exchange = "shipping"
//! routing_key = "due"
//! ```
//!
//! Name this crate in your code so that it is linked: `use dq_forward as _;`. Each runner then
//! serves the configured queues and takes the configured messages. A forward is a handler, so the
//! queue's retries, backoff, dead jobs, pauses and metrics apply.
//!
//! A job is done when the other system has taken it: the broker has confirmed and not returned the
//! message, Redis has answered, or the webhook's receiver has answered with 2xx. Delivery is *at
//! least once*. After a crash or a lost answer the message is sent again with the same id, which is
//! the job id.
//!
//! In the other direction, `[[ingress]]` takes plain messages from other systems and schedules them
//! as jobs; see [`IngressSettings`].
//!
//! ```toml
//! [[ingress]]
//! type = "amqp"
//! url = "amqp://user:${AMQP_PASSWORD}@rabbit/shop"
//! from = "orders.due"
//! queue = "ORDER_TIMEOUT"
//! key = "/orderId"
//! delay = "header:x-delay"
//! ```
//!
//! | `type` of a forward | Feature | Settings |
//! |---|---|---|
//! | `http` | `http` | [`HttpSettings`] |
//! | `amqp` | `amqp` | [`AmqpSettings`] |
//! | `redis-stream` | `redis` | [`RedisStreamSettings`] |
//! | `redis-list` | `redis` | [`RedisListSettings`] |
//!
//! Ingress types are `amqp` (feature `amqp`), `redis-stream` and `redis-list` (feature `redis`).

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
#[cfg(any(feature = "amqp", feature = "redis"))]
mod ingress;

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "amqp")]
mod broker;
#[cfg(any(feature = "http", feature = "amqp"))]
mod ca;
#[cfg(feature = "http")]
mod http;
#[cfg(any(feature = "http", feature = "amqp", feature = "redis"))]
mod job;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "http", feature = "amqp", feature = "redis"))]
mod tls;

#[cfg(feature = "amqp")]
pub use amqp::{AmqpForward, AmqpSettings};
#[cfg(feature = "http")]
pub use http::{HttpForward, HttpSettings, Resolve};
#[cfg(any(feature = "amqp", feature = "redis"))]
pub use ingress::IngressSettings;
#[cfg(feature = "redis")]
pub use redis::{RedisListForward, RedisListSettings, RedisStreamForward, RedisStreamSettings};
