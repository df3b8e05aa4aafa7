//! The router, and a server of its own for it.

use std::io;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use axum::{Extension, Router};
use dq_ops::Ops;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::auth::Auth;
use crate::connections::{self, Limits};
use crate::guard::{guard, with_headers};
use crate::metrics::ProcessMetrics;
use crate::problem::Problem;
use crate::{api, health, metrics, pages};

/// The dashboard and the API as a router. Mount it with `Router::nest_service`, or serve it alone
/// with [`serve`].
///
/// A response of `/v1/events` ends after 15 s, and browsers open another one: a server that stops only
/// when all responses have ended, such as that of axum with `with_graceful_shutdown`, waits for it.
///
/// There is no router without authentication:
///
/// ```compile_fail,E0061
/// # async fn open(ops: dq_ops::Ops) {
/// let router = dq_web::router(ops);
/// # }
/// ```
pub fn router(ops: Ops, auth: Auth) -> Router {
    build(App::new(ops, auth, None), Arc::new(String::new))
}

fn build(app: App, process_metrics: ProcessMetrics) -> Router {
    Router::new()
        .merge(pages::routes())
        .merge(api::routes())
        .route("/metrics", get(metrics::metrics).layer(Extension(process_metrics)))
        .fallback(not_found)
        .method_not_allowed_fallback(api::method_not_allowed)
        .layer(from_fn_with_state(app.clone(), guard))
        // Added after the guard, so these need no token: orchestrators have none.
        .merge(health::routes().method_not_allowed_fallback(api::method_not_allowed))
        .layer(from_fn(with_headers))
        .with_state(app)
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not found", "there is nothing at this address")
        .remedy("the dashboard is at ./, and openapi.json describes the API")
}

/// Serves the dashboard and the API alone, until `shutdown` completes; then lets requests finish,
/// for 10 seconds at most.
///
/// Up to 1,024 connections are served at once. One on which no complete header arrives within 10
/// seconds is closed, as is one whose client takes nothing of a response for as long.
///
/// # Errors
/// If the listener cannot be used, or is not on a loopback address while `auth` is
/// [`Auth::loopback`].
pub async fn serve(
    listener: TcpListener,
    ops: Ops,
    auth: Auth,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with_metrics(listener, ops, auth, String::new, shutdown).await
}

/// Like [`serve`]; `/metrics` ends with what `metrics` returns, in the text format of Prometheus:
/// those of the runners of this process.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with_metrics(
    listener: TcpListener,
    ops: Ops,
    auth: Auth,
    metrics: impl Fn() -> String + Send + Sync + 'static,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    if auth.is_local() && !address.ip().is_loopback() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{address} can be reached from other machines, and the authentication is for this one; configure tokens or users, or listen on 127.0.0.1"
            ),
        ));
    }
    // With this, streams of events last until the server stops, instead of 15 s each.
    let (stop, stopped) = watch::channel(false);
    let router = build(App::new(ops, auth, Some(stopped)), Arc::new(metrics));
    connections::serve(listener, router, Limits::default(), stop, shutdown).await;
    Ok(())
}
