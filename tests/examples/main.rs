//! Tests the examples as processes: with valid and invalid options, killed, and restarted.

mod actix;
mod features;
mod opentelemetry;
mod order_timeout;
mod program;
mod quickstart;
mod rabbitmq_reminders;
mod recurring;
mod redisson_bridge;
mod refusals;
mod server;
mod switch_backend;
mod transactions;
mod use_cases;
