//! A web shop whose unpaid orders cancel themselves.
//!
//! ```sh
//! cargo run --example order_timeout -- --timeout 10
//! curl -X POST http://127.0.0.1:3000/orders         # {"id":1,"state":"unpaid"}
//! curl -X POST http://127.0.0.1:3000/orders/1/pay   # {"id":1,"state":"paid"}
//! curl         http://127.0.0.1:3000/orders/1
//! ```
//!
//! Orders and jobs live in one SQLite file, so an order and its timeout come to be in one
//! transaction: there is no order without a timeout, whenever the process is killed.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{self, Path};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dq::BoxError;
use dq::config::Environment;
use dq::prelude::*;
use dq::sqlite::rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use dq::sqlite::{SqliteBackend, SqliteConfig};
use serde::{Deserialize, Serialize};
#[cfg(unix)]
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing_subscriber::EnvFilter;

const USAGE: &str = "\
A web shop whose unpaid orders cancel themselves.

usage: order_timeout [--timeout SECONDS] [--listen ADDRESS] [--db FILE]

  --timeout SECONDS  how long an order may stay unpaid (default: $ORDER_TIMEOUT, or 900)
  --listen ADDRESS   where to serve; port 0 picks a free one (default: 127.0.0.1:3000)
  --db FILE          the SQLite file of orders and jobs (default: shop.db)
  --help             this text";

// --- the job --------------------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct UnpaidOrder {
    id: i64,
}

/// Runs once the time for paying is over. `blocking`, as rusqlite is synchronous.
#[delay_handler("ORDER_TIMEOUT", blocking, max_attempts = 5, timeout = "30s")]
fn order_timeout(State(shop): State<Shop>, order: UnpaidOrder) -> HandlerResult {
    // One statement decides between payment and timeout, in whatever order they come.
    if !shop.change(order.id, "cancelled")? {
        return Ok(Outcome::skip("it was paid"));
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
        let jobs = Arc::new(SqliteBackend::open(&config, &Environment::default()).await?);
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
        let timeout = timeout.after(self.timeout).key(job_key(id)).into_job()?;
        self.jobs.schedule_in(&transaction, vec![timeout])?;
        transaction.commit()?;
        Ok(Order { id, state: "unpaid".to_owned() })
    }

    fn find(&self, id: i64) -> HandlerResult<Option<Order>> {
        let select = "SELECT id, state FROM orders WHERE id = ?1";
        let order = |row: &dq::sqlite::rusqlite::Row<'_>| {
            Ok(Order { id: row.get("id")?, state: row.get("state")? })
        };
        Ok(self.orders().query_row(select, [id], order).optional()?)
    }

    /// Gives an unpaid order its last state; `false` if it was not unpaid.
    fn change(&self, id: i64, state: &str) -> HandlerResult<bool> {
        let update = "UPDATE orders SET state = ?2 WHERE id = ?1 AND state = 'unpaid'";
        Ok(self.orders().execute(update, (id, state))? == 1)
    }

    fn orders(&self) -> MutexGuard<'_, Connection> {
        // A transaction that a panic interrupted was rolled back.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn job_key(order: i64) -> String {
    format!("order-{order}")
}

// --- HTTP -----------------------------------------------------------------------------------

fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/orders", post(create))
        .route("/orders/{id}", get(show))
        .route("/orders/{id}/pay", post(pay))
        .with_state(shop)
}

type Answer = Result<Response, Failed>;

async fn create(extract::State(shop): extract::State<Shop>) -> Answer {
    let order = spawn_blocking(move || shop.create()).await??;
    let location = [("location", format!("/orders/{}", order.id))];
    Ok((StatusCode::CREATED, location, Json(order)).into_response())
}

async fn show(extract::State(shop): extract::State<Shop>, Path(id): Path<i64>) -> Answer {
    let order = spawn_blocking(move || shop.find(id)).await??;
    Ok(order.map_or_else(|| not_found(id), |order| Json(order).into_response()))
}

async fn pay(extract::State(shop): extract::State<Shop>, Path(id): Path<i64>) -> Answer {
    let dq = shop.dq.clone();
    let paid = move || HandlerResult::Ok((shop.change(id, "paid")?, shop.find(id)?));
    let (changed, order) = spawn_blocking(paid).await??;
    let Some(order) = order else { return Ok(not_found(id)) };
    if !changed {
        return Ok(refusal(StatusCode::CONFLICT, format!("order {id} is {} already", order.state)));
    }
    // The order is safe from its timeout by now; this saves the job from running for nothing.
    if let Err(error) = dq.cancel::<order_timeout>(job_key(id)).await {
        tracing::warn!(%error, id, "the timeout of a paid order stays, and will find it paid");
    }
    Ok(Json(order).into_response())
}

fn not_found(id: i64) -> Response {
    refusal(StatusCode::NOT_FOUND, format!("there is no order {id}"))
}

fn refusal(status: StatusCode, why: String) -> Response {
    (status, Json(serde_json::json!({ "error": why }))).into_response()
}

/// Something went wrong here: said in the log, not to the client.
struct Failed;

impl<E: Into<BoxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        tracing::error!(error = %error.into(), "a request failed");
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        refusal(StatusCode::INTERNAL_SERVER_ERROR, "sorry, try again later".to_owned())
    }
}

// --- the program ----------------------------------------------------------------------------

async fn run(options: Options) -> HandlerResult<()> {
    let shop = Shop::open(&options.db, options.timeout).await?;
    let dq = shop.dq.clone();
    let listener = tokio::net::TcpListener::bind(&options.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
    println!("listening on http://{}", listener.local_addr()?);

    let (stop, stopping) = watch::channel(false);
    tokio::spawn(async move {
        asked_to_stop().await;
        stop.send(true)
    });
    let stopped = |mut stopping: watch::Receiver<bool>| async move {
        // An error means that the sender is gone, which ends the wait as well.
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    // Both drain: requests are answered, running handlers end, what is due later stays in the file.
    let server = axum::serve(listener, routes(shop.clone()))
        .with_graceful_shutdown(stopped(stopping.clone()));
    let server = async { server.await.map_err(BoxError::from) };
    let runner = dq.runner().state(shop).run_until(stopped(stopping));
    let runner = async { runner.await.map_err(BoxError::from) };
    tokio::try_join!(server, runner)?;
    Ok(dq.close().await?)
}

/// Ctrl-C, or SIGTERM as service managers send it.
async fn asked_to_stop() {
    let ctrl_c = tokio::signal::ctrl_c();
    #[cfg(unix)]
    let terminate = async {
        let signal = tokio::signal::unix::signal(SignalKind::terminate());
        signal.expect("a handler can be installed").recv().await
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        _ = ctrl_c => {}
        _ = terminate => {}
    }
}

struct Options {
    timeout: Duration,
    listen: String,
    db: String,
}

impl Options {
    /// `None` when only help was wanted.
    fn parse() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Short, ValueExt};
        let mut parser = lexopt::Parser::from_env();
        let mut timeout = std::env::var("ORDER_TIMEOUT").unwrap_or_else(|_| "900".to_owned());
        let mut listen = "127.0.0.1:3000".to_owned();
        let mut db = "shop.db".to_owned();
        while let Some(option) = parser.next()? {
            match option {
                Long("timeout") => timeout = parser.value()?.string()?,
                Long("listen") => listen = parser.value()?.string()?,
                Long("db") => db = parser.value()?.string()?,
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        let seconds = timeout.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        let timeout = seconds.ok_or(format!("the timeout is {timeout:?}; it wants seconds"))?;
        Ok(Some(Self { timeout, listen, db }))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(refusal) => {
            eprintln!("order_timeout: {refusal}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let verbosity = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colour = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(verbosity).with_ansi(colour);
    log.with_writer(std::io::stderr).init();
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("order_timeout: {error}");
            ExitCode::FAILURE
        }
    }
}
