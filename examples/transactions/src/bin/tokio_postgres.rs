//! Orders and their timeouts in one PostgreSQL transaction, with tokio-postgres.
//!
//! ```sh
//! cd examples/transactions
//! createdb shop
//! cargo run --bin tokio_postgres -- postgres://localhost/shop
//! ```

use std::sync::Arc;
use std::time::Duration;

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

type Db = Arc<Mutex<Client>>;

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
}

/// Cancels the order and ends the job in one transaction: both happen exactly once.
#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(State(db): State<Db>, job: JobContext, order: Order) -> HandlerResult {
    let mut db = db.lock().await;
    let tx = db.transaction().await?;
    let cancel = "UPDATE orders SET state = 'cancelled' WHERE id = $1 AND state = 'unpaid'";
    let changed = tx.execute(cancel, &[&order.id]).await?;
    let done = job.done_statement()?;
    tx.execute(done.sql(), &[&done.argument()]).await?;
    tx.commit().await?;
    if changed == 1 {
        println!("order {}: cancelled", order.id);
    }
    Ok(Outcome::Done)
}

/// Creates the order and its timeout in one transaction.
async fn create(dq: &Dq, db: &Db, id: i64, delay: Duration, commit: bool) -> HandlerResult<()> {
    let timeout = dq.schedule::<order_timeout>(Order { id }).after(delay).key(id).statement()?;
    let mut db = db.lock().await;
    let tx = db.transaction().await?;
    tx.execute("INSERT INTO orders VALUES ($1, 'unpaid')", &[&id]).await?;
    tx.execute(timeout.sql(), &[&timeout.argument()]).await?;
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
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state text)", &[]).await?;
    let db = Arc::new(Mutex::new(client));
    create(&dq, &db, 1, 100.millis(), true).await?;
    create(&dq, &db, 2, 100.millis(), false).await?;
    let jobs = dq.queue_of::<order_timeout>()?;
    println!("{} job", jobs.stats().await?.stored());
    dq.runner().state(db).run_until(all_ended(jobs)).await?;
    Ok(())
}
