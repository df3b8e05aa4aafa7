//! The dashboard and the HTTP API of `dq`, as one axum router that can be mounted under any path,
//! with the feature `actix` also in actix-web.
//!
//! ```no_run
//! use dq_core::Dq;
//! use dq_ops::{Actor, Ops, Role};
//! use dq_web::Auth;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ops = Ops::new(Dq::connect("sqlite://jobs.db").await?);
//! let auth = Auth::token(Actor::new("ops", Role::Admin), std::env::var("DQ_TOKEN")?)?;
//! let app = axum::Router::<()>::new().nest_service("/ops/dq", dq_web::router(ops, auth));
//! # Ok(())
//! # }
//! ```
//!
//! Mount it with `nest_service`, which also serves the address without the slash at the end. All
//! addresses on the pages are relative, so it works under any prefix and behind any proxy without
//! being told. What it needs from a proxy is the header `Host` as the browser sends it, or
//! `X-Forwarded-Host`.
//!
//! | Address | Serves |
//! |---|---|
//! | `/` | the dashboard: server-rendered, works without scripts |
//! | `/v1/…` | the JSON API; `/openapi.json` describes it |
//! | `/v1/events` | changes of the overview as server-sent events |
//! | `/metrics` | gauges of the store for Prometheus |
//! | `/healthz`, `/readyz` | for orchestrators, without authentication: whether the process answers, and whether the store does |
//!
//! [`Auth`] is an argument of [`router`]: there is no way to leave it out. A [`Role`](dq_ops::Role)
//! says what an actor may do. Requests that change something must come from a page of this server
//! or from a program; nothing is kept in cookies.

#[cfg(feature = "actix")]
pub mod actix;
mod api;
mod app;
mod auth;
mod connections;
mod extract;
mod guard;
mod health;
mod live;
mod metrics;
mod pages;
mod problem;
mod readiness;
mod serve;

pub use auth::Auth;
pub use serve::{router, serve, serve_with_metrics};
