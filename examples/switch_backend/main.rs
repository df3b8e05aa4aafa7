//! Moves from SQLite to PostgreSQL, or to Redis, to Redisson's queues in Redis, and to RabbitMQ, by
//! changing only the configuration file. Stop it while reminders are pending, with Ctrl-C or
//! `kill -9`, and start it with the next file. Pending reminders still run, and new ones go to the
//! new store.
//!
//! ```sh
//! alias switch='cargo run -q -p dq-examples --example switch_backend -- --config'
//! switch examples/switch_backend/sqlite.toml
//! switch examples/switch_backend/postgres.toml
//! ```
//!
//! Or, after the first:
//!
//! ```sh
//! switch examples/switch_backend/redis.toml
//! switch examples/switch_backend/redisson.toml
//! switch examples/switch_backend/rabbitmq.toml
//! ```
//!
//! `postgres.toml` needs PostgreSQL at postgres://postgres@127.0.0.1:5432/postgres, and the next
//! ones Redis at redis://127.0.0.1:6379/0. The last also needs RabbitMQ at amqp://127.0.0.1:5672.
//! The files contain these addresses.

use clap::Parser;
use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

/// Schedules three reminders in the configured store and runs all that are pending.
#[derive(Parser)]
struct Options {
    /// Configuration file; see examples/switch_backend.
    #[arg(long)]
    config: String,
    /// Seconds until the reminders are due.
    #[arg(long = "in", default_value_t = 15, value_parser = clap::value_parser!(u64).range(..=3_600))]
    delay: u64,
}

#[derive(Serialize, Deserialize)]
struct Reminder {
    number: u32,
    /// The configuration file that scheduled it.
    config: String,
}

/// Sends a reminder. With the short lease, a killed runner's job soon runs again.
#[delay_handler("REMINDER", lease = "10s")]
async fn remind(reminder: Reminder) {
    println!("  reminder {} of {}", reminder.number, reminder.config);
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let Options { config, delay } = Options::parse();
    let dq = Dq::from_config(&config).await?;
    let queue = dq.queue_of::<remind>()?;
    // Counts include drained stores.
    println!("{} pending from before", queue.stats().await?.live());

    let reminder = |number| Reminder { number, config: config.clone() };
    let jobs = (1..=3).map(|n| dq.schedule::<remind>(reminder(n)).after(delay.seconds()));
    println!("{} more scheduled, due in {delay} s", dq.schedule_many(jobs).await?.len());

    let stop = async {
        tokio::select!(() = all_ended(queue.clone()) => {}, () = dq::shutdown_signal() => {})
    };
    dq.runner().run_until(stop).await?;
    println!("{} left for the next start", queue.stats().await?.live());
    dq.close().await
}
