//! An axum service with sqlx on PostgreSQL: unpaid orders cancel themselves.
//!
//! ```sh
//! cd examples/transactions
//! createdb shop
//! cargo run --bin axum_postgres -- "postgres://USER:PASSWORD@localhost/shop?sslmode=disable" --timeout 10
//! curl -X POST http://127.0.0.1:3000/orders         # {"id":1,"state":"unpaid"}
//! curl -X POST http://127.0.0.1:3000/orders/1/pay   # {"id":1,"state":"paid"}
//! ```

use std::time::Duration;

use axum::extract::{self, Path};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use clap::Parser;
use dq::BoxError;
use dq::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgExecutor, PgPool};

/// A web shop whose unpaid orders cancel themselves.
#[derive(Parser)]
struct Options {
    /// PostgreSQL database of orders and jobs.
    url: String,
    /// Seconds in which an order must be paid.
    #[arg(long, default_value = "900")]
    timeout: u32,
    /// Address to serve at; port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
}

#[derive(Serialize, Deserialize)]
struct UnpaidOrder {
    id: i64,
}

/// Cancels the order and ends the job in one transaction: both happen exactly once.
#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(
    State(db): State<PgPool>,
    job: JobContext,
    order: UnpaidOrder,
) -> HandlerResult {
    let mut tx = db.begin().await?;
    let cancel = "UPDATE orders SET state = 'cancelled' WHERE id = $1 AND state = 'unpaid'";
    let changed = sqlx::query(cancel).bind(order.id).execute(&mut *tx).await?.rows_affected();
    let done = job.done_statement()?;
    sqlx::query(AssertSqlSafe(done.sql())).bind(done.argument()).execute(&mut *tx).await?;
    tx.commit().await?;
    if changed == 1 {
        println!("order {}: cancelled", order.id);
    }
    Ok(Outcome::Done)
}

#[derive(Clone)]
struct Shop {
    dq: Dq,
    db: PgPool,
    /// How long an order may stay unpaid.
    delay: Duration,
}

/// Creates the order and the job that cancels it in one transaction.
async fn create(shop: extract::State<Shop>) -> Result<impl IntoResponse, Refusal> {
    let Shop { dq, db, delay } = shop.0;
    let mut tx = db.begin().await?;
    let insert = "INSERT INTO orders (state) VALUES ('unpaid') RETURNING id";
    let id: i64 = sqlx::query_scalar(insert).fetch_one(&mut *tx).await?;
    let job = dq.schedule::<order_timeout>(UnpaidOrder { id }).after(delay).key(id).statement()?;
    sqlx::query(AssertSqlSafe(job.sql())).bind(job.argument()).execute(&mut *tx).await?;
    tx.commit().await?;
    let location = [("location", format!("/orders/{id}"))];
    Ok((StatusCode::CREATED, location, Json(json!({ "id": id, "state": "unpaid" }))))
}

/// Pays the order and cancels its job in one transaction.
async fn pay(shop: extract::State<Shop>, Path(id): Path<i64>) -> Result<Json<Value>, Refusal> {
    let mut tx = shop.db.begin().await?;
    let pay = "UPDATE orders SET state = 'paid' WHERE id = $1 AND state = 'unpaid'";
    if sqlx::query(pay).bind(id).execute(&mut *tx).await?.rows_affected() == 0 {
        let state = find(&mut *tx, id).await?;
        return Err(Refusal(StatusCode::CONFLICT, format!("order {id} is {state} already")));
    }
    // If the job is running, it waits for this transaction and then finds the order paid.
    let cancel = "SELECT dq.cancel('ORDER_TIMEOUT', $1)";
    sqlx::query(cancel).bind(id.to_string()).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(Json(json!({ "id": id, "state": "paid" })))
}

async fn show(shop: extract::State<Shop>, Path(id): Path<i64>) -> Result<Json<Value>, Refusal> {
    Ok(Json(json!({ "id": id, "state": find(&shop.db, id).await? })))
}

/// Returns the order's state.
async fn find(db: impl PgExecutor<'_>, id: i64) -> Result<String, Refusal> {
    let select = "SELECT state FROM orders WHERE id = $1";
    let state = sqlx::query_scalar(select).bind(id).fetch_optional(db).await?;
    state.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, format!("there is no order {id}")))
}

struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// Prints the details and hides them from the response.
impl<E: Into<BoxError>> From<E> for Refusal {
    fn from(error: E) -> Self {
        eprintln!("a request failed: {}", error.into());
        Self(StatusCode::INTERNAL_SERVER_ERROR, "sorry, try again later".to_owned())
    }
}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let Options { url, timeout, listen } = Options::parse();
    let (dq, db) = (Dq::connect(&url).await?, PgPool::connect(&url).await?);
    let table = "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, state text NOT NULL)";
    sqlx::query(table).execute(&db).await?;
    let routes = Router::new()
        .route("/orders", routing::post(create))
        .route("/orders/{id}", routing::get(show))
        .route("/orders/{id}/pay", routing::post(pay))
        .with_state(Shop { dq: dq.clone(), db: db.clone(), delay: timeout.seconds() });
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);

    // After Ctrl-C or SIGTERM, the server answers its requests and the runner waits for its
    // handlers.
    let server = axum::serve(listener, routes).with_graceful_shutdown(dq::shutdown_signal());
    let server = async { server.await.map_err(BoxError::from) };
    let runner = async { Ok(dq.runner().state(db).run_until(dq::shutdown_signal()).await?) };
    tokio::try_join!(server, runner)?;
    Ok(dq.close().await?)
}
