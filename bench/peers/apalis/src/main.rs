//! apalis with its Redis storage.

mod program;

use std::time::Duration;

use apalis_redis::{Config, ConnectionManager, RedisStorage};

use crate::program::Job;

/// Jobs per call: larger calls time out.
const BULK: u64 = 100;

async fn storage(address: &str) -> RedisStorage<Job, ConnectionManager> {
    let connection = apalis_redis::connect(format!("redis://{address}")).await.unwrap();
    // An idle worker looks for due jobs only at each heartbeat, by default every 30 seconds.
    let config = Config::default().batch_size(100).heartbeat_interval(Duration::from_secs(1));
    RedisStorage::new(connection).with_config(config)
}

async fn close(_storage: RedisStorage<Job, ConnectionManager>) {}

#[tokio::main]
async fn main() {
    program::main().await;
}
