//! A Rust runner that shares delayed queues with a Java service using Redisson.
//!
//! ```sh
//! cargo run -p dq-examples --example redisson_bridge -- --redis redis://127.0.0.1:6379/0
//! ```
//!
//! Java adds jobs to `ORDER_TIMEOUT`, which Rust handles. Rust schedules jobs in `ORDER_FEEDBACK`,
//! which Java takes:
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
//! Without Java, use these commands in a second terminal:
//!
//! ```sh
//! redis-cli EVAL "local due = redis.call('TIME')[1] * 1000 + 5000
//!   local member = struct.pack('Bc0Lc0', 8, 'order001', #ARGV[1], ARGV[1])
//!   return redis.call('ZADD', KEYS[1], due, member)
//! " 1 'redisson_delay_queue_timeout:{ORDER_TIMEOUT}' '{"id":1001}'
//! redis-cli BLPOP ORDER_FEEDBACK 30
//! ```

use clap::Parser;
use dq::prelude::*;
use dq::redis::{Codec, Format, RedissonConfig};
use serde::{Deserialize, Serialize};

/// Handles jobs of Redisson's delayed queue ORDER_TIMEOUT, and schedules jobs in ORDER_FEEDBACK for
/// Java's take().
#[derive(Parser)]
struct Options {
    /// URL of the Redis that Java uses.
    #[arg(long, default_value = "redis://127.0.0.1:6379/0")]
    redis: String,
    /// Codec of Java's queues: `json` for TypedJsonJacksonCodec, or JSON in a StringCodec;
    /// `jackson:com.example.Order` for JsonJacksonCodec, with the class of the orders.
    #[arg(long, default_value = "json")]
    codec: Codec,
    /// Storage format of Redisson before 3.21.1.
    #[arg(long)]
    legacy: bool,
}

/// Matches Java's class, and ignores its other fields.
#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

// Java handles this queue's jobs.
dq::queue!(ORDER_FEEDBACK: Order);

/// Runs when an order from Java is due.
#[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
async fn order_timeout(State(dq): State<Dq>, order: Order) -> HandlerResult {
    println!("order {} was not paid in time", order.id);
    // A job may run twice. The key makes only the first run schedule feedback.
    let id = order.id;
    let _ = dq.schedule::<ORDER_FEEDBACK>(order).after(3.seconds()).key(id).await?;
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let options = Options::parse();
    // Logs jobs that fail to decode, with the reason.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut config = RedissonConfig::new(options.redis);
    config.codec = options.codec;
    config.format = if options.legacy { Format::Legacy } else { Format::Current };
    // Redisson moves due jobs to take()'s list only while a Java process has the RDelayedQueue
    // open. With this setting the runner moves them too, so take() suffices.
    config.consumed_by_java.insert(ORDER_FEEDBACK::queue()?);
    let dq = Dq::builder().backend_config(Box::new(config)).connect().await?;

    println!("waiting for orders in ORDER_TIMEOUT; Ctrl-C to stop");
    dq.runner().run_until(dq::shutdown_signal()).await?;
    dq.close().await
}
