//! Guide: SQLite.

use dq::prelude::*;
use dq::sqlite::SqliteBackend;
use dq::sqlite::rusqlite::{Connection, TransactionBehavior};

dq::queue!(close_unpaid_order: i64 = "CLOSE_UNPAID_ORDER");

fn place_order(dq: &Dq, id: i64) -> Result<(), dq::BoxError> {
    let sqlite = dq.backend_as::<SqliteBackend>().ok_or("the store is not SQLite")?;
    let job = dq.schedule::<close_unpaid_order>(id).after(15.minutes()).into_job()?;

    let mut connection = Connection::open("shop.db")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("INSERT INTO orders (id) VALUES (?1)", [id])?;
    sqlite.schedule_in(&transaction, vec![job])?;
    transaction.commit()?;
    Ok(())
}

#[tokio::test]
async fn only_a_store_of_sqlite_takes_part_in_its_transactions() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let error = place_order(&dq, 1).expect_err("it is another store");
    assert_eq!(error.to_string(), "the store is not SQLite");
    Ok(())
}
