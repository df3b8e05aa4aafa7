//! Tests of the examples as processes: started with valid and invalid options, killed, started
//! again.

mod actix;
mod http;
mod opentelemetry;
mod order_timeout;
mod program;
mod quickstart;
#[cfg(feature = "rabbitmq")]
mod rabbitmq_reminders;
#[cfg(feature = "sqlite")]
mod recurring;
#[cfg(feature = "redis")]
mod redisson_bridge;
#[cfg(all(feature = "sqlite", feature = "redis", feature = "rabbitmq"))]
mod switch_backend;
mod use_cases;
