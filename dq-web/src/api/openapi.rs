//! The OpenAPI document, generated from the handlers.

use std::sync::LazyLock;

use axum::Json;
use axum::http::StatusCode;
use dq_ops::openapi;
use serde_json::Value;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{PathItem, RefOr};
use utoipa::{Modify, OpenApi};

use super::refine::refine;
use super::{bulk, jobs, lease, queues, schedules, work};
use crate::health;
use crate::problem::Problem;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dq",
        description = "Delayed jobs: schedule, inspect and operate. Errors are RFC 9457 problems, except a 409 for a \
            job that runs already, which is described at its operation. \
            In a path, names are percent-encoded, or written as `base64:` (keys: `key-base64:`) and the \
            name in URL-safe Base64, which no proxy changes."
    ),
    servers((url = "./", description = "Where this document is")),
    paths(
        queues::overview, queues::queues, queues::queue, queues::pause, queues::create_paused, queues::resume,
        queues::limit, queues::unlimit, queues::purge, queues::dead, queues::forecast, queues::runners, queues::check,
        queues::audit, queues::events, queues::forecasts, queues::simulate,
        schedules::list, schedules::get, schedules::put, schedules::remove, schedules::pause,
        schedules::resume, schedules::skip_next, schedules::run, schedules::backfill,
        jobs::list, jobs::schedule, jobs::get, jobs::timeline, jobs::reschedule, jobs::cancel,
        jobs::run, jobs::replay, jobs::remove,
        jobs::schedule_many, bulk::cancel, bulk::reschedule, bulk::replay, bulk::remove,
        work::claim, lease::renew, lease::settle,
        health::healthz, health::readyz,
    ),
    // Schemas used only by parameters.
    components(schemas(
        openapi::Cursor, openapi::Duration, openapi::FilterText, openapi::IdempotencyKey, openapi::JobId, openapi::JobTarget,
        openapi::Order, openapi::ScheduleName, openapi::SearchText,
    )),
    modifiers(&Schemes, &Responses),
    security(("token" = []), ("basic" = [])),
    tags(
        (name = "queues", description = "Queues"),
        (name = "jobs", description = "Jobs"),
        (name = "work", description = "Workers in any language, which claim jobs"),
        (name = "schedules", description = "Schedules of recurring jobs"),
        (name = "operations", description = "Runners, findings, the audit, events"),
    )
)]
struct Document;

/// Authentication schemes. The document omits trusted headers, which a proxy sets, and custom
/// schemes, which only the application knows.
struct Schemes;

impl Modify for Schemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        for (name, scheme) in [("token", HttpAuthScheme::Bearer), ("basic", HttpAuthScheme::Basic)]
        {
            components.add_security_scheme(name, SecurityScheme::Http(Http::new(scheme)));
        }
    }
}

/// Completes each response: the specification requires a description, but the generator omits an
/// empty one, and gives problems (the `default` response) the media type of plain JSON.
struct Responses;

impl Modify for Responses {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            let PathItem { get, put, post, patch, delete, .. } = item;
            let operations = [get, put, post, patch, delete].into_iter().flatten();
            let responses = operations.flat_map(|operation| &mut operation.responses.responses);
            for (status, response) in responses {
                let RefOr::T(response) = response else { continue };
                if status == "default"
                    && let Some(content) = response.content.shift_remove("application/json")
                {
                    response.content.insert(Problem::MEDIA_TYPE.to_owned(), content);
                }
                if response.description.is_empty() {
                    let status = status.parse::<StatusCode>().ok();
                    let reason = status.and_then(|status| status.canonical_reason());
                    response.description = reason.unwrap_or("An error").to_owned();
                }
            }
        }
    }
}

pub(super) async fn document() -> Json<&'static Value> {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
        let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
        refine(&mut document);
        document
    });
    Json(&DOCUMENT)
}
