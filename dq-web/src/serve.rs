//! The router, and a server for it.

use std::io;
use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
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

/// Returns the dashboard and the API as a router.
///
/// Mount it with `Router::nest_service`, or run it alone with [`serve`].
///
/// A `/v1/events` response ends after 15 s, and browsers reconnect. If your server waits for open
/// responses before it stops, such as axum's `with_graceful_shutdown`, it waits up to that long.
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
        // The guard limits bodies.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), guard))
        // Merged after the guard, so these need no token: orchestrators have none.
        .merge(health::routes().method_not_allowed_fallback(api::method_not_allowed))
        .layer(from_fn(with_headers))
        .with_state(app)
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not found", "there is nothing at this address")
        .remedy("the dashboard is at ./, and openapi.json describes the API")
}

/// Serves the dashboard and the API until `shutdown` completes, then gives requests 10 seconds.
///
/// Up to 10,000 connections are open at once, because each worker that waits for a job has one. The
/// server closes a connection if a request header takes more than 10 seconds to arrive, or if the
/// client reads nothing of a response for 10 seconds.
///
/// # Errors
/// If the listener cannot be used, or if `auth` is [`Auth::loopback`] and the listener is not on a
/// loopback address.
pub async fn serve(
    listener: TcpListener,
    ops: Ops,
    auth: Auth,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with_metrics(listener, ops, auth, String::new, shutdown).await
}

/// Serves as [`serve`] does, and appends your metrics to `/metrics`.
///
/// Return the runner metrics of this process from `metrics`, in the Prometheus text format.
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
    // With this signal, event streams last until the server stops, not just 15 s.
    let (stop, stopped) = watch::channel(false);
    let router = build(App::new(ops.clone(), auth, Some(stopped)), Arc::new(metrics));
    // Workers that wait are answered before the listener closes.
    let shutdown = async move {
        shutdown.await;
        ops.stop_work().await;
    };
    connections::serve(listener, router, Limits::default(), stop, shutdown).await;
    Ok(())
}
