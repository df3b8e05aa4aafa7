//! Probes for orchestrators, which need no authentication and return no data.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use dq_core::{Backend as _, Dq, QueueName};
use tokio::time::timeout;

use crate::app::App;
use crate::problem::{Problem, Result};

/// How long the store may take to answer. Kubernetes waits one second by default.
const TIMEOUT: Duration = Duration::from_millis(800);

/// A queue name closed to jobs, so that its counts cost nothing.
const QUEUE: &str = "dq.readiness";

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

/// Answers without asking the store. Needs no authentication.
#[utoipa::path(get, path = "/healthz", tag = "operations", operation_id = "get_health", security(()),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Problem)))]
pub(crate) async fn healthz() -> &'static str {
    "ok"
}

/// Answers 200 if the store answers within a second, else 503. Needs no authentication.
#[utoipa::path(get, path = "/readyz", tag = "operations", operation_id = "get_readiness", security(()),
    responses((status = 200, body = String, content_type = "text/plain"), (status = "default", body = Problem)))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<&'static str> {
    if app.store_answers().get(answers(app.ops().dq())).await {
        return Ok("ok");
    }
    // The store's error stays private, because anybody may ask.
    let detail = "the store does not answer";
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
        .remedy("the check of the store says why"))
}

async fn answers(dq: &Dq) -> bool {
    let Ok(queue) = QueueName::new(QUEUE) else { return false };
    matches!(timeout(TIMEOUT, dq.backend().stats(&[queue])).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dq_core::{Backend, MemoryBackend, QueueStats, SystemClock, async_trait};

    use super::*;

    #[derive(Debug)]
    struct Silent(MemoryBackend);

    #[async_trait]
    impl dq_core::Layer for Silent {
        fn inner(&self) -> &dyn Backend {
            &self.0
        }

        async fn stats(&self, _: &[QueueName]) -> dq_core::Result<Vec<QueueStats>> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_does_not_wait_for_a_store_that_does_not_answer() {
        let store = Arc::new(Silent(MemoryBackend::new(Arc::new(SystemClock))));
        let dq = Dq::builder().backend(store).connect().await.unwrap();
        assert!(!answers(&dq).await);
    }
}
