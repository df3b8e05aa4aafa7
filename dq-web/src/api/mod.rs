//! The HTTP API under `/v1`.

mod address;
mod bulk;
pub(crate) mod input;
mod jobs;
mod lease;
mod openapi;
mod queues;
mod refine;
mod schedules;
mod work;

use axum::Router;
use axum::extract::Request;
use axum::http::header::ALLOW;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::app::App;
use crate::problem::Problem;
use address::Address;

const CLAIMS: &str = "/v1/claims";
const RENEW: &str = "/v1/leases:renew";
const SETTLE: &str = "/v1/leases:settle";

/// Whether an address is for workers, which may use no other.
pub(crate) fn is_for_workers(path: &str) -> bool {
    [CLAIMS, RENEW, SETTLE].contains(&path)
}

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/overview", get(queues::overview))
        .route("/v1/queues", get(queues::queues))
        .route("/v1/queues/{queue}", get(queues::queue).post(queues::act))
        .route("/v1/queues/{queue}/jobs", get(jobs::list).post(jobs::schedule))
        .route("/v1/queues/{queue}/dead", get(queues::dead))
        .route("/v1/queues/{queue}/forecast", get(queues::forecast))
        // Matches the whole segment, because the router compares before it decodes: `jobs:cancel`
        // may arrive as `jobs%3Acancel`.
        .route("/v1/queues/{queue}/{segment}", post(bulk::act))
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
        .route("/v1/simulate", post(queues::simulate))
        .route("/v1/runners", get(queues::runners))
        .route("/v1/check", get(queues::check))
        .route("/v1/audit", get(queues::audit))
        .route("/v1/events", get(queues::events))
        .route(CLAIMS, post(work::claim))
        .route(RENEW, post(lease::renew))
        .route(SETTLE, post(lease::settle))
        .route("/openapi.json", get(openapi::document))
        .route_layer(from_fn(refuse_queries_of_changes))
        .route_layer(from_fn(refuse_other_methods))
}

pub(crate) async fn method_not_allowed(uri: Uri) -> Response {
    let problem = Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid input",
        "the address has no such method",
    );
    match Address::of(uri.path()) {
        // The router's own list mixes the methods of the resource and its actions.
        Some(Address { allow, actions, .. }) => {
            let actions: Vec<_> = actions.iter().map(|action| format!(":{action}")).collect();
            let remedy = format!("it has {allow}; a POST goes to one of {}", actions.join(", "));
            ([(ALLOW, allow)], problem.remedy(remedy)).into_response()
        }
        None => problem.into_response(),
    }
}

/// Refuses a method that does not fit the address, such as `POST` without an action. Runs before
/// the handler, which reads the body as an action's.
async fn refuse_other_methods(request: Request, next: Next) -> Response {
    let address = Address::of(request.uri().path());
    if address.is_some_and(|address| address.refuses(request.method())) {
        return method_not_allowed(request.uri().clone()).await;
    }
    next.run(request).await
}

/// Refuses query parameters of changes, which the handlers ignore: with `?dry_run=true`, all
/// matching jobs would change.
async fn refuse_queries_of_changes(request: Request, next: Next) -> Response {
    let is_change = !request.method().is_safe();
    match request.uri().query().filter(|query| is_change && !query.is_empty()) {
        Some(query) => Problem::bad_request(format!("the address has the parameters {query:?}"))
            .remedy("put what a change needs into its body")
            .into_response(),
        None => next.run(request).await,
    }
}
