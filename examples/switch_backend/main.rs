//! From SQLite to Redis to Redisson's queues in Redis to RabbitMQ, with the same program: only the file
//! named by `--config` differs. Stop it while reminders are pending, with Ctrl-C or `kill -9`, and start
//! it with the next file: the old ones still run, the new ones are in the new store.
//!
//! ```sh
//! alias switch='cargo run -q --example switch_backend --features redis,rabbitmq -- --config'
//! switch examples/switch_backend/sqlite.toml
//! switch examples/switch_backend/redis.toml
//! switch examples/switch_backend/redisson.toml
//! switch examples/switch_backend/rabbitmq.toml
//! ```
//!
//! All but the first want a Redis and the last a RabbitMQ: their addresses are in the files,
//! redis://127.0.0.1:6379/0 and amqp://127.0.0.1:5672.

use std::process::ExitCode;
use std::time::Duration;

use dq::prelude::*;
use dq::{ErrorKind, QueueHandle};
use serde::{Deserialize, Serialize};

const USAGE: &str = "\
Schedules three reminders in the store that a file names, and runs all that are pending.

usage: switch_backend --config FILE [--in SECONDS]

  --config FILE  which store to use, and which to drain: see examples/switch_backend
  --in SECONDS   when the reminders are due, 0 to 3600 (default: 15)
  --help         this text";

#[derive(Serialize, Deserialize)]
struct Reminder {
    number: u32,
    /// The file with which it was scheduled.
    config: String,
}

/// A short lease, so that a job whose runner was killed soon runs again.
#[delay_handler("REMINDER", lease = "10s")]
async fn remind(reminder: Reminder) {
    println!("  reminder {} of {}", reminder.number, reminder.config);
}

async fn run(options: Options) -> dq::Result<()> {
    let dq = Dq::from_config(&options.config).await?;
    let queue = dq.queue_of::<remind>()?;
    println!("{} pending from before", pending(&queue).await?);

    let reminders = (1..=3).map(|number| {
        let config = options.config.clone();
        dq.schedule::<remind>(Reminder { number, config }).after(options.delay)
    });
    let scheduled = dq.schedule_many(reminders).await?;
    println!("{} more scheduled, due in {:?}", scheduled.len(), options.delay);

    let finished = async {
        while pending(&queue).await.is_ok_and(|count| count > 0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let stop = async {
        tokio::select! {
            () = finished => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    dq.runner().run_until(stop).await?;
    println!("{} left for the next start", pending(&queue).await?);
    dq.close().await
}

/// How many reminders wait or run, in the store and in those that are drained.
async fn pending(queue: &QueueHandle) -> dq::Result<u64> {
    Ok(queue.stats().await?.live())
}

struct Options {
    config: String,
    delay: Duration,
}

impl Options {
    /// `None` when only help was wanted.
    fn parse() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Short, ValueExt};
        let mut parser = lexopt::Parser::from_env();
        let (mut config, mut seconds) = (None, 15.0);
        while let Some(option) = parser.next()? {
            match option {
                Long("config") => config = Some(parser.value()?.string()?),
                Long("in") => seconds = parser.value()?.parse()?,
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        if !(0.0..=3600.0).contains(&seconds) {
            return Err(format!("--in is {seconds}; it must be 0 to 3600 seconds").into());
        }
        let config = config.ok_or("which store? Give --config FILE")?;
        Ok(Some(Self { config, delay: Duration::from_secs_f64(seconds) }))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(refusal) => {
            eprintln!("switch_backend: {refusal}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("switch_backend: {error}");
            ExitCode::from(if error.kind() == ErrorKind::Config { 2 } else { 1 })
        }
    }
}
