//! Dashboard and HTTP API of `dq`, as an axum router you mount under any path. The feature `actix`
//! mounts it in actix-web.
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
//! Mount it with `nest_service`, which also serves the address without its final slash. Every
//! address on a page is relative, so any prefix and any proxy work without configuration. A proxy
//! must pass on the browser's `Host` header, or send `X-Forwarded-Host`.
//!
//! | Address | Serves |
//! |---|---|
//! | `/` | the dashboard: server-rendered, works without scripts |
//! | `/v1/…` | the JSON API; `/openapi.json` describes it |
//! | `/v1/claims`, `/v1/leases:…` | for workers in any language, which claim jobs |
//! | `/v1/events` | overview changes as server-sent events |
//! | `/metrics` | store gauges for Prometheus |
//! | `/healthz`, `/readyz` | whether the process and the store answer; need no authentication |
//!
//! You must pass an [`Auth`] to [`router`]; its actors have a [`Role`](dq_ops::Role). The server
//! accepts changes from its own pages and from programs, and sets no cookies.

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "actix")]
pub mod actix;
mod api;
mod app;
mod auth;
mod cached;
mod connections;
mod extract;
mod guard;
mod health;
mod live;
mod metrics;
mod pages;
mod problem;
mod serve;

pub use auth::Auth;
#[doc(hidden)]
pub use guard::InProcess;
pub use serve::{router, serve, serve_with_metrics};
