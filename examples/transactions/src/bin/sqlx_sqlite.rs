//! Orders and their timeouts in one SQLite transaction, with sqlx.
//!
//! ```sh
//! cd examples/transactions
//! cargo run --bin sqlx_sqlite -- sqlite:shop.db
//! ```

use std::time::Duration;

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, SqlitePool};

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

/// Cancels the order and ends the job in one transaction: both happen exactly once.
#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(
    State(db): State<SqlitePool>,
    job: JobContext,
    order: Order,
) -> HandlerResult {
    let mut tx = db.begin().await?;
    let cancel = "UPDATE orders SET state = 'cancelled' WHERE id = ?1 AND state = 'unpaid'";
    let changed = sqlx::query(cancel).bind(order.id).execute(&mut *tx).await?.rows_affected();
    let done = job.done_statement()?;
    sqlx::query(AssertSqlSafe(done.sql())).bind(done.argument()).execute(&mut *tx).await?;
    tx.commit().await?;
    if changed == 1 {
        println!("order {}: cancelled", order.id);
    }
    Ok(Outcome::Done)
}

/// Creates the order and its timeout in one transaction.
async fn create(
    dq: &Dq,
    db: &SqlitePool,
    id: i64,
    delay: Duration,
    commit: bool,
) -> HandlerResult<()> {
    let timeout = dq.schedule::<order_timeout>(Order { id }).after(delay).key(id).statement()?;
    let mut tx = db.begin().await?;
    let insert = "INSERT INTO orders VALUES (?1, 'unpaid')";
    sqlx::query(insert).bind(id).execute(&mut *tx).await?;
    sqlx::query(AssertSqlSafe(timeout.sql())).bind(timeout.argument()).execute(&mut *tx).await?;
    if commit {
        tx.commit().await?
    } else {
        tx.rollback().await?
    }
    Ok(())
}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let url = std::env::args().nth(1).ok_or("the first argument is the URL of a file")?;
    let dq = Dq::connect(&url).await?;
    let db = SqlitePool::connect(&url).await?;
    sqlx::query("CREATE TABLE orders (id bigint PRIMARY KEY, state text)").execute(&db).await?;
    create(&dq, &db, 1, 100.millis(), true).await?;
    create(&dq, &db, 2, 100.millis(), false).await?;
    let jobs = dq.queue_of::<order_timeout>()?;
    println!("{} job", jobs.stats().await?.stored());
    dq.runner().state(db).run_until(all_ended(jobs)).await?;
    Ok(())
}
