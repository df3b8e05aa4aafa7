//! Orders and their timeouts in one PostgreSQL transaction, with SeaORM.
//!
//! ```sh
//! cd examples/transactions
//! createdb shop
//! cargo run --bin sea_orm -- postgres://localhost/shop
//! ```

use std::time::Duration;

use dq::SqlStatement;
use dq::prelude::*;
use dq_examples::all_ended;
use sea_orm::{
    ConnectionTrait, Database, DatabaseConnection, DbBackend, Statement, TransactionTrait,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

fn statement(statement: &SqlStatement) -> Statement {
    let argument = statement.argument().into();
    Statement::from_sql_and_values(DbBackend::Postgres, statement.sql(), [argument])
}

/// Cancels the order and ends the job in one transaction: both happen exactly once.
#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(
    State(db): State<DatabaseConnection>,
    job: JobContext,
    order: Order,
) -> HandlerResult {
    let tx = db.begin().await?;
    let id = order.id;
    let cancel =
        format!("UPDATE orders SET state = 'cancelled' WHERE id = {id} AND state = 'unpaid'");
    let changed = tx.execute_unprepared(&cancel).await?.rows_affected();
    tx.execute_raw(statement(&job.done_statement()?)).await?;
    tx.commit().await?;
    if changed == 1 {
        println!("order {}: cancelled", order.id);
    }
    Ok(Outcome::Done)
}

/// Creates the order and its timeout in one transaction.
async fn create(
    dq: &Dq,
    db: &DatabaseConnection,
    id: i64,
    delay: Duration,
    commit: bool,
) -> HandlerResult<()> {
    let timeout = dq.schedule::<order_timeout>(Order { id }).after(delay).key(id).statement()?;
    let tx = db.begin().await?;
    tx.execute_unprepared(&format!("INSERT INTO orders VALUES ({}, 'unpaid')", id)).await?;
    tx.execute_raw(statement(&timeout)).await?;
    if commit {
        tx.commit().await?
    } else {
        tx.rollback().await?
    }
    Ok(())
}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let url = std::env::args().nth(1).ok_or("the first argument is the URL of a database")?;
    let dq = Dq::connect(&url).await?;
    let db = Database::connect(&url).await?;
    db.execute_unprepared("CREATE TABLE orders (id bigint PRIMARY KEY, state text)").await?;
    create(&dq, &db, 1, 100.millis(), true).await?;
    create(&dq, &db, 2, 100.millis(), false).await?;
    let jobs = dq.queue_of::<order_timeout>()?;
    println!("{} job", jobs.stats().await?.stored());
    dq.runner().state(db).run_until(all_ended(jobs)).await?;
    Ok(())
}
