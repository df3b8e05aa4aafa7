//! Guide: SQLite.

use std::sync::Arc;

use dq::prelude::*;
use dq::sqlite::rusqlite::{Connection, TransactionBehavior};
use dq::sqlite::{SqliteBackend, SqliteConfig};

dq::queue!(close_unpaid_order: i64 = "CLOSE_UNPAID_ORDER");

fn place_order(dq: &Dq, sqlite: &SqliteBackend, id: i64) -> Result<(), dq::BoxError> {
    let job = dq.schedule::<close_unpaid_order>(id).after(15.minutes()).into_job()?;

    let mut connection = Connection::open("shop.db")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("INSERT INTO orders (id) VALUES (?1)", [id])?;
    sqlite.schedule_in(&transaction, vec![job])?;
    transaction.commit()?;
    Ok(())
}

async fn connect() -> dq::Result<(Dq, Arc<SqliteBackend>)> {
    let config = SqliteConfig::new("shop.db");
    let sqlite = SqliteBackend::open(&config, &dq::config::Environment::default()).await?;
    let sqlite = Arc::new(sqlite);
    let dq = Dq::builder().backend(sqlite.clone()).connect().await?;
    Ok((dq, sqlite))
}
