//! apalis with its SQLite storage.

#[path = "../../apalis/src/program.rs"]
mod program;

use std::time::Duration;

use apalis_sqlite::{Config, SqliteStorage};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::program::Job;

/// Jobs per call.
const BULK: u64 = 1_000;

async fn storage(file: &str) -> SqliteStorage<Job> {
    // `setup` sets these on only one pool connection; here, all have them.
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Off);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    SqliteStorage::setup(&pool).await.unwrap();
    // An idle worker looks for due jobs only at each heartbeat, by default every 30 seconds.
    let config = Config::default().batch_size(100).heartbeat_interval(Duration::from_secs(1));
    SqliteStorage::new(&pool).with_config(config)
}

async fn close(storage: SqliteStorage<Job>) {
    storage.pool().close().await;
}

#[tokio::main]
async fn main() {
    program::main().await;
}
