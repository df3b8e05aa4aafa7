//! A web shop that cancels unpaid orders.
//!
//! ```sh
//! cargo run -p dq-examples --example order_timeout -- --timeout 10
//! curl -X POST http://127.0.0.1:3000/orders         # {"id":1,"state":"unpaid"}
//! curl -X POST http://127.0.0.1:3000/orders/1/pay   # {"id":1,"state":"paid"}
//! curl         http://127.0.0.1:3000/orders/1
//! ```
//!
//! Orders and jobs share one SQLite file, so one transaction creates an order and its timeout.
//! Every order has a timeout, even if the process is killed.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{self, Path};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use dq::config::Environment;
use dq::prelude::*;
use dq::sqlite::rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior};
use dq::sqlite::{SqliteBackend, SqliteConfig};
use dq::{BoxError, HistoryLimit, HistoryLimits};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

/// A web shop whose unpaid orders cancel themselves.
#[derive(Parser)]
struct Options {
    /// Seconds in which an order must be paid.
    #[arg(long, default_value = "900", value_parser = seconds)]
    timeout: Duration,
    /// Address to serve at; port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// SQLite file of orders and jobs.
    #[arg(long, default_value = "shop.db")]
    db: String,
}

fn seconds(text: &str) -> Result<Duration, BoxError> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

// --- the job --------------------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct UnpaidOrder {
    id: i64,
}

/// Runs when the payment time is over. `blocking`, because rusqlite is synchronous.
#[delay_handler("ORDER_TIMEOUT", blocking, max_attempts = 5, timeout = "30s")]
fn order_timeout(State(shop): State<Shop>, order: UnpaidOrder) -> HandlerResult {
    // One atomic statement decides between payment and timeout.
    if !shop.change(order.id, "cancelled")? {
        return Ok(Outcome::skip("paid"));
    }
    tracing::info!(order.id, "cancelled: not paid in time");
    Ok(Outcome::Done)
}

// --- the shop -------------------------------------------------------------------------------

#[derive(Clone)]
struct Shop {
    orders: Arc<Mutex<Connection>>,
    jobs: Arc<SqliteBackend>,
    dq: Dq,
    timeout: Duration,
}

#[derive(Serialize)]
struct Order {
    id: i64,
    state: String,
}

impl Shop {
    async fn open(file: &str, timeout: Duration) -> HandlerResult<Self> {
        let config = SqliteConfig::new(file);
        let history = HistoryLimits::all(HistoryLimit::default());
        let environment = Environment::default().history(history);
        let jobs = Arc::new(SqliteBackend::open(&config, &environment).await?);
        let dq = Dq::builder().backend(jobs.clone()).connect().await?;
        let orders = Connection::open(file)?;
        orders.busy_timeout(Duration::from_secs(5))?;
        orders.execute_batch(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)",
        )?;
        Ok(Self { orders: Arc::new(Mutex::new(orders)), jobs, dq, timeout })
    }

    /// Stores the order and schedules its timeout: both or neither.
    fn create(&self) -> HandlerResult<Order> {
        let mut orders = self.orders();
        let transaction = orders.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO orders (state) VALUES ('unpaid')", [])?;
        let id = transaction.last_insert_rowid();
        let timeout = self.dq.schedule::<order_timeout>(UnpaidOrder { id });
        let timeout = timeout.after(self.timeout).key(id).into_job()?;
        self.jobs.schedule_in(&transaction, vec![timeout])?;
        transaction.commit()?;
        Ok(Order { id, state: "unpaid".to_owned() })
    }

    fn find(&self, id: i64) -> HandlerResult<Option<Order>> {
        let select = "SELECT id, state FROM orders WHERE id = ?1";
        let order = |row: &Row<'_>| Ok(Order { id: row.get("id")?, state: row.get("state")? });
        Ok(self.orders().query_row(select, [id], order).optional()?)
    }

    /// Sets the final state of an unpaid order; returns `false` if it is not unpaid.
    fn change(&self, id: i64, state: &str) -> HandlerResult<bool> {
        let update = "UPDATE orders SET state = ?2 WHERE id = ?1 AND state = 'unpaid'";
        Ok(self.orders().execute(update, (id, state))? == 1)
    }

    fn orders(&self) -> MutexGuard<'_, Connection> {
        self.orders.lock().unwrap()
    }
}

// --- HTTP -----------------------------------------------------------------------------------

fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/orders", post(create))
        .route("/orders/{id}", get(show))
        .route("/orders/{id}/pay", post(pay))
        .with_state(shop)
}

type Reply = Result<Response, InternalError>;

async fn create(extract::State(shop): extract::State<Shop>) -> Reply {
    let order = spawn_blocking(move || shop.create()).await??;
    let location = [("location", format!("/orders/{}", order.id))];
    Ok((StatusCode::CREATED, location, Json(order)).into_response())
}

async fn show(extract::State(shop): extract::State<Shop>, Path(id): Path<i64>) -> Reply {
    let order = spawn_blocking(move || shop.find(id)).await??;
    Ok(order.map_or_else(|| not_found(id), |order| Json(order).into_response()))
}

async fn pay(extract::State(shop): extract::State<Shop>, Path(id): Path<i64>) -> Reply {
    let dq = shop.dq.clone();
    let paid = move || HandlerResult::Ok((shop.change(id, "paid")?, shop.find(id)?));
    let (changed, order) = spawn_blocking(paid).await??;
    let Some(order) = order else { return Ok(not_found(id)) };
    if !changed {
        return Ok(refusal(StatusCode::CONFLICT, format!("order {id} is {} already", order.state)));
    }
    // Optional, because the timeout skips a paid order anyway.
    if let Err(error) = dq.cancel::<order_timeout>(id).await {
        tracing::warn!(%error, id, "the timeout of a paid order was not cancelled");
    }
    Ok(Json(order).into_response())
}

fn not_found(id: i64) -> Response {
    refusal(StatusCode::NOT_FOUND, format!("there is no order {id}"))
}

fn refusal(status: StatusCode, why: String) -> Response {
    (status, Json(serde_json::json!({ "error": why }))).into_response()
}

/// Logs the details and hides them from the response.
struct InternalError;

impl<E: Into<BoxError>> From<E> for InternalError {
    fn from(error: E) -> Self {
        tracing::error!(error = %error.into(), "a request failed");
        Self
    }
}

impl IntoResponse for InternalError {
    fn into_response(self) -> Response {
        refusal(StatusCode::INTERNAL_SERVER_ERROR, "sorry, try again later".to_owned())
    }
}

// --- the program ----------------------------------------------------------------------------

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let options = Options::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let shop = Shop::open(&options.db, options.timeout).await?;
    let dq = shop.dq.clone();
    let listener = tokio::net::TcpListener::bind(&options.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
    println!("listening on http://{}", listener.local_addr()?);

    // After Ctrl-C or SIGTERM, the server answers its requests and the runner waits for its
    // handlers.
    let server = axum::serve(listener, routes(shop.clone()));
    let server = server.with_graceful_shutdown(dq::shutdown_signal());
    let server = async { server.await.map_err(BoxError::from) };
    let runner = async { Ok(dq.runner().state(shop).run_until(dq::shutdown_signal()).await?) };
    tokio::try_join!(server, runner)?;
    Ok(dq.close().await?)
}
