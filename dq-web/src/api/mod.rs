//! The HTTP API under `/v1`.

mod bulk;
mod input;
mod jobs;
mod openapi;
mod queues;
mod schedules;

use axum::Router;
use axum::routing::get;

use crate::app::App;

/// The routes of the API.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/overview", get(queues::overview))
        .route("/v1/queues", get(queues::queues))
        .route("/v1/queues/{queue}", get(queues::queue).post(queues::act))
        .route("/v1/queues/{queue}/jobs", get(jobs::list).post(jobs::schedule))
        .route("/v1/queues/{queue}/dead", get(queues::dead))
        .route("/v1/queues/{queue}/forecast", get(queues::forecast))
        .route("/v1/queues/{queue}/{action}", axum::routing::post(bulk::act))
        .route(
            "/v1/queues/{queue}/jobs/{job}",
            get(jobs::get).patch(jobs::reschedule).delete(jobs::cancel).post(jobs::act),
        )
        .route("/v1/queues/{queue}/jobs/{job}/timeline", get(jobs::timeline))
        .route("/v1/schedules", get(schedules::list))
        .route(
            "/v1/schedules/{schedule}",
            get(schedules::get).put(schedules::put).delete(schedules::remove).post(schedules::act),
        )
        .route("/v1/forecast", get(queues::forecasts))
        .route("/v1/simulate", axum::routing::post(queues::simulate))
        .route("/v1/runners", get(queues::runners))
        .route("/v1/check", get(queues::check))
        .route("/v1/audit", get(queues::audit))
        .route("/v1/events", get(queues::events))
        .route("/openapi.json", get(openapi::document))
}
