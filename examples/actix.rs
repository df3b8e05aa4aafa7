//! An actix-web service that deletes an account some time after its owner asks for it. Until then,
//! the owner can keep it.
//!
//! ```sh
//! cargo run -p dq-examples --example actix -- --grace 10
//! curl -X DELETE http://127.0.0.1:3000/accounts/ann        # ann is deleted at …
//! curl -X POST   http://127.0.0.1:3000/accounts/ann/keep   # ann is kept
//! ```
//!
//! The service has a dashboard; stderr shows its address and token.

use std::time::Duration;

use actix_web::error::{ErrorBadRequest, ErrorInternalServerError};
use actix_web::web::{Data, Path};
use actix_web::{App, HttpResponse, HttpServer, delete, post};
use clap::Parser;
use dq::ErrorKind;
use dq::prelude::*;
use dq_ops::Ops;
use dq_web::Auth;

#[derive(Parser)]
struct Options {
    /// Seconds in which an account can be kept.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400))]
    grace: u64,
    /// Address to serve at; port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// URL of the store.
    #[arg(long, default_value = "sqlite://accounts.db")]
    backend: String,
}

#[delay_handler("DELETE_ACCOUNT", max_attempts = 5)]
async fn delete_account(name: String) {
    println!("{name} is deleted");
}

/// State of the request handlers. Any worker thread may schedule and cancel.
struct Accounts {
    dq: Dq,
    grace: Duration,
}

/// Schedules the deletion.
#[delete("/accounts/{name}")]
async fn close(accounts: Data<Accounts>, name: Path<String>) -> actix_web::Result<HttpResponse> {
    let name = name.into_inner();
    let deletion = accounts.dq.schedule::<delete_account>(name.clone());
    // A repeated request finds the job under its key, and keeps its due time.
    let scheduled = deletion.after(accounts.grace).key(&name).await.map_err(failed)?;
    Ok(HttpResponse::Accepted().body(format!("{name} is deleted at {}", scheduled.due())))
}

/// Cancels the deletion, if it has not begun.
#[post("/accounts/{name}/keep")]
async fn keep(accounts: Data<Accounts>, name: Path<String>) -> actix_web::Result<HttpResponse> {
    let cancelled = accounts.dq.cancel::<delete_account>(name.as_str()).await.map_err(failed)?;
    Ok(match cancelled {
        Cancelled::Cancelled => HttpResponse::Ok().body(format!("{name} is kept")),
        Cancelled::NotFound => {
            HttpResponse::NotFound().body(format!("{name} is not being deleted"))
        }
        // It runs, or on some stores it may run.
        _ => HttpResponse::Conflict().body(format!("it may be too late to keep {name}")),
    })
}

/// Shows the client only errors in the request; others go to the log.
fn failed(error: dq::Error) -> actix_web::Error {
    if error.kind() == ErrorKind::InvalidInput {
        return ErrorBadRequest(error);
    }
    tracing::error!(%error, "a request failed");
    ErrorInternalServerError("sorry, try again later")
}

// `actix_web::main` has a single-threaded runtime; here the runner uses all cores.
#[tokio::main]
async fn main() -> HandlerResult<()> {
    let Options { grace, listen, backend } = Options::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let dq = Dq::connect(&backend).await?;
    let accounts = Data::new(Accounts { dq: dq.clone(), grace: grace.seconds() });
    let auth = Auth::loopback();
    let token = auth.generated_token().unwrap_or_default().to_owned();
    // All workers share one router, so that the store is read once for all open pages.
    let dashboard = dq_web::router(Ops::new(dq.clone()), auth);
    let app = move || {
        let dashboard = dq_web::actix::scope("/ops/dq", dashboard.clone());
        App::new().app_data(accounts.clone()).service(close).service(keep).service(dashboard)
    };

    // After Ctrl-C or SIGTERM, the server answers its requests and the runner waits for its
    // handlers.
    let server = HttpServer::new(app)
        .shutdown_signal(dq::shutdown_signal())
        // In seconds: an open dashboard page holds an endless request.
        .shutdown_timeout(5)
        .bind(&listen)
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    for address in server.addrs() {
        println!("listening on http://{address}");
        eprintln!("dashboard at http://dq:{token}@{address}/ops/dq/");
    }
    let server = async { HandlerResult::Ok(server.run().await?) };
    let runner = async { Ok(dq.runner().run_until(dq::shutdown_signal()).await?) };
    tokio::try_join!(server, runner)?;
    Ok(dq.close().await?)
}
