//! The examples, run as a user would: started, asked nonsense, killed, started again.

mod order_timeout;
mod program;
mod quickstart;
#[cfg(feature = "rabbitmq")]
mod rabbitmq_reminders;
#[cfg(feature = "redis")]
mod redisson_bridge;
#[cfg(all(feature = "sqlite", feature = "redis", feature = "rabbitmq"))]
mod switch_backend;
