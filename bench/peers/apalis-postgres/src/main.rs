//! apalis with its PostgreSQL storage.

#[path = "../../apalis/src/program.rs"]
mod program;

use std::time::Duration;

use apalis_postgres::{Config, PgPool, PostgresStorage};

use crate::program::Job;

/// Jobs per call.
const BULK: u64 = 1_000;

async fn storage(url: &str) -> PostgresStorage<Job> {
    let pool = PgPool::connect(url).await.unwrap();
    PostgresStorage::setup(&pool).await.unwrap();
    // An idle worker looks for due jobs only at each heartbeat, by default every 30 seconds.
    let config = Config::default().batch_size(100).heartbeat_interval(Duration::from_secs(1));
    PostgresStorage::new(&pool).with_config(config)
}

async fn close(storage: PostgresStorage<Job>) {
    storage.pool().close().await;
}

#[tokio::main]
async fn main() {
    program::main().await;
}
