//! A Rust runner on the delayed queues of a Java service that uses Redisson.
//!
//! ```sh
//! cargo run --example redisson_bridge --features redis -- --redis redis://127.0.0.1:6379/0
//! ```
//!
//! Java fills `ORDER_TIMEOUT`, which is handled here, and takes from `ORDER_FEEDBACK` what is
//! scheduled here:
//!
//! ```java
//! // class Order { public long id; }
//! Codec json = new TypedJsonJacksonCodec(Order.class);
//! RBlockingQueue<Order> timeouts = redisson.getBlockingQueue("ORDER_TIMEOUT", json);
//! Order order = new Order();
//! order.id = 1001;
//! redisson.getDelayedQueue(timeouts).offer(order, 5, TimeUnit.SECONDS);
//! RBlockingQueue<Order> feedback = redisson.getBlockingQueue("ORDER_FEEDBACK", json);
//! System.out.println("how was order " + feedback.take().id);
//! ```
//!
//! Without Java at hand, play its part in a second terminal:
//!
//! ```sh
//! redis-cli EVAL "local due = redis.call('TIME')[1] * 1000 + 5000
//!   local member = struct.pack('Bc0Lc0', 8, 'order001', #ARGV[1], ARGV[1])
//!   return redis.call('ZADD', KEYS[1], due, member)
//! " 1 'redisson_delay_queue_timeout:{ORDER_TIMEOUT}' '{"id":1001}'
//! redis-cli BLPOP ORDER_FEEDBACK 30
//! ```

use std::io::IsTerminal;
use std::process::ExitCode;

use dq::prelude::*;
use dq::redis::{Codec, Format, RedissonConfig};
use dq::{ErrorKind, Queue};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

const USAGE: &str = "\
Handles what a Java service puts into the delayed queue ORDER_TIMEOUT of Redisson,
and schedules ORDER_FEEDBACK for its take().

usage: redisson_bridge [--redis URL] [--codec CODEC] [--format FORMAT]

  --redis URL      where Java's Redis is (default: redis://127.0.0.1:6379/0)
  --codec CODEC    the codec of Java's queues (default: json):
                   json                       TypedJsonJacksonCodec, or JSON in a StringCodec
                   jackson:com.example.Order  JsonJacksonCodec, with the class of the orders
  --format FORMAT  current for Redisson 3.21.1 and newer, or legacy (default: current)
  --help           this text";

/// As Java's class; fields that are only there are ignored.
#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

// Java takes from this one, so it has no handler here.
dq::queue!(ORDER_FEEDBACK: Order);

/// Gets what Java offered, once it is due.
#[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
async fn order_timeout(State(dq): State<Dq>, order: Order) -> HandlerResult {
    println!("order {} was not paid in time", order.id);
    // A job may run twice. The key sees to it that the second run schedules nothing more.
    let key = format!("order-{}", order.id);
    dq.schedule::<ORDER_FEEDBACK>(order).after(3.seconds()).key(key).await?;
    Ok(Outcome::Done)
}

async fn run(options: Options) -> dq::Result<()> {
    let mut config = RedissonConfig::new(options.redis);
    config.codec = options.codec;
    config.format = options.format;
    // Redisson moves what is due only while a Java process holds the RDelayedQueue. This process
    // does it too, so that a plain take() on the other side is enough.
    config.consumed_by_java.insert(ORDER_FEEDBACK::queue()?);
    let dq = Dq::builder().backend_config(Box::new(config)).connect().await?;

    println!("waiting for orders in ORDER_TIMEOUT; Ctrl-C to stop");
    let stop = async {
        tokio::signal::ctrl_c().await.ok();
    };
    dq.runner().state(dq.clone()).run_until(stop).await?;
    dq.close().await
}

struct Options {
    redis: String,
    codec: Codec,
    format: Format,
}

impl Options {
    /// `None` when only help was wanted.
    fn parse() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Short, ValueExt};
        let mut parser = lexopt::Parser::from_env();
        let mut options = Self {
            redis: "redis://127.0.0.1:6379/0".to_owned(),
            codec: Codec::Json,
            format: Format::Current,
        };
        while let Some(option) = parser.next()? {
            match option {
                Long("redis") => options.redis = parser.value()?.string()?,
                Long("codec") => options.codec = parser.value()?.parse()?,
                Long("format") => {
                    options.format = match parser.value()?.string()?.as_str() {
                        "current" => Format::Current,
                        "legacy" => Format::Legacy,
                        other => {
                            let why = format!("--format is {other:?}; it is current or legacy");
                            return Err(why.into());
                        }
                    };
                }
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
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
            eprintln!("redisson_bridge: {refusal}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // What cannot be read, with the reason and what to do, goes to the log.
    let verbosity = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(verbosity).with_ansi(colour);
    log.with_writer(std::io::stderr).init();
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redisson_bridge: {error}");
            ExitCode::from(if error.kind() == ErrorKind::Config { 2 } else { 1 })
        }
    }
}
