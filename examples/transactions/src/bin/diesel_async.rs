//! Orders and their timeouts in one PostgreSQL transaction, with diesel-async.
//!
//! ```sh
//! cd examples/transactions
//! createdb shop
//! cargo run --bin diesel_async -- postgres://localhost/shop
//! ```

use std::time::Duration;

use diesel::QueryResult;
use diesel::result::Error::RollbackTransaction;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use dq::BoxError;
use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

type Db = Pool<AsyncPgConnection>;

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

/// Cancels the order and ends the job in one transaction: both happen exactly once.
#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(State(db): State<Db>, job: JobContext, order: Order) -> HandlerResult {
    let done = job.done_statement()?;
    let mut connection = db.get().await?;
    let changed = connection
        .transaction(async |tx| {
            let cancel = "UPDATE orders SET state = 'cancelled' WHERE id = $1 AND state = 'unpaid'";
            let changed = sql_query(cancel).bind::<BigInt, _>(order.id).execute(tx).await?;
            sql_query(done.sql()).bind::<Text, _>(done.argument()).execute(tx).await?;
            QueryResult::Ok(changed)
        })
        .await?;
    if changed == 1 {
        println!("order {}: cancelled", order.id);
    }
    Ok(Outcome::Done)
}

/// Creates the order and its timeout in one transaction.
async fn create(dq: &Dq, db: &Db, id: i64, delay: Duration, commit: bool) -> HandlerResult<()> {
    let timeout = dq.schedule::<order_timeout>(Order { id }).after(delay).key(id).statement()?;
    let mut connection = db.get().await?;
    let result = connection
        .transaction(async |tx| {
            let insert = "INSERT INTO orders VALUES ($1, 'unpaid')";
            sql_query(insert).bind::<BigInt, _>(id).execute(tx).await?;
            sql_query(timeout.sql()).bind::<Text, _>(timeout.argument()).execute(tx).await?;
            if commit { Ok(()) } else { Err(RollbackTransaction) }
        })
        .await;
    match result {
        Err(RollbackTransaction) => Ok(()),
        result => Ok(result?),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1).ok_or("the first argument is the URL of a database")?;
    let dq = Dq::connect(&url).await?;
    let db = Pool::builder(AsyncDieselConnectionManager::new(&url)).build()?;
    let table = "CREATE TABLE orders (id bigint PRIMARY KEY, state text)";
    sql_query(table).execute(&mut db.get().await?).await?;
    create(&dq, &db, 1, 100.millis(), true).await?;
    create(&dq, &db, 2, 100.millis(), false).await?;
    let jobs = dq.queue_of::<order_timeout>()?;
    println!("{} job", jobs.stats().await?.stored());
    dq.runner().state(db).run_until(all_ended(jobs)).await?;
    Ok(())
}
