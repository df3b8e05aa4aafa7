//! The dashboard: server-rendered pages that work without scripts.
//!
//! Page paths have no slash, and queue names and job ids are in the query. So relative addresses
//! work under any prefix, and no proxy rewrites a name with a slash.

mod act;
mod bulk;
mod chart;
mod chrome;
mod dead;
mod forecast;
mod format;
mod job;
mod job_row;
mod jobs;
mod limits;
mod overview;
mod past;
mod queue;
mod queue_table;
mod schedules;
mod status;
mod text;

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use self::chrome::{ICON, SCRIPT, STYLE, problems_as_pages};
use crate::app::App;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(overview::page))
        .route("/queue", get(queue::page))
        .route("/jobs", get(jobs::page))
        .route("/job", get(job::page))
        .route("/bulk", get(bulk::page))
        .route("/dead", get(dead::page))
        .route("/schedules", get(schedules::list))
        .route("/schedule", get(schedules::detail))
        .route("/forecast", get(forecast::page))
        .route("/runners", get(status::runners))
        .route("/check", get(status::check))
        .route("/audit", get(status::audit))
        .route_layer(from_fn(problems_as_pages))
        .route("/act", post(act::act))
        .route("/assets/style.css", get(async || asset("text/css; charset=utf-8", STYLE)))
        .route("/assets/app.js", get(async || asset("text/javascript; charset=utf-8", SCRIPT)))
        .route("/assets/icon.svg", get(async || asset("image/svg+xml", ICON)))
}

/// An asset; its address changes with its content, so browsers may cache it.
fn asset(content_type: &'static str, text: &'static str) -> Response {
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "private, max-age=86400")];
    (headers, text).into_response()
}
