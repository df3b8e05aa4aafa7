//! The API of an open store, called within this process.

use axum::Router;
use axum::body::{Body, to_bytes};
use dq_core::Dq;
#[cfg(feature = "redis")]
use dq_core::{ImportPreview, ImportReport, ImportSource, QueueName};
use dq_ops::{Actor, Ops, Role};
use dq_web::{Auth, InProcess};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use super::request::{Problem, Request};
use crate::failure::{Failure, Result};

/// An open store. Access to its configuration grants every right.
pub(crate) struct Local {
    runtime: Runtime,
    dq: Dq,
    #[cfg(feature = "redis")]
    session: dq_ops::Session,
    router: TowerToHyperService<Router>,
}

impl Local {
    pub(crate) fn new(runtime: Runtime, dq: Dq) -> Self {
        let (ops, actor) = (Ops::new(dq.clone()), Actor::new("cli", Role::Admin));
        #[cfg(feature = "redis")]
        let session = ops.session(actor.clone());
        let auth = Auth::custom(move |_| std::future::ready(Some(actor.clone())));
        // Outside the runtime, so that the router does not watch the queues.
        let router = TowerToHyperService::new(dq_web::router(ops, auth));
        Self {
            runtime,
            dq,
            #[cfg(feature = "redis")]
            session,
            router,
        }
    }

    /// Waits for a call of the store.
    #[cfg(feature = "postgres")]
    pub(crate) fn wait_for<T>(&self, call: impl AsyncFnOnce(&Dq) -> Result<T>) -> Result<T> {
        self.runtime.block_on(call(&self.dq))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn import(
        &self,
        queue: &QueueName,
        source: &dyn ImportSource,
    ) -> Result<ImportReport> {
        Ok(self.runtime.block_on(self.session.import(queue, source))?)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn preview_import(
        &self,
        queue: &QueueName,
        source: &dyn ImportSource,
    ) -> Result<ImportPreview> {
        Ok(self.runtime.block_on(self.session.preview_import(queue, source))?)
    }

    pub(super) fn send<T: DeserializeOwned>(&self, request: &Request<'_>) -> Result<T> {
        let internal = |error: String| Failure::new("internal", error, "");
        let body = request.body.as_ref().map(ToString::to_string).unwrap_or_default();
        let call = request.head("").extension(InProcess).body(Body::from(body)).map_err(|_| {
            Failure::usage(
                "a request cannot be written",
                "check the names for characters that HTTP forbids",
            )
        })?;
        let (status, body) = self.runtime.block_on(async {
            let Ok(response) = self.router.call(call).await;
            (response.status(), to_bytes(response.into_body(), usize::MAX).await)
        });
        let body = body.map_err(|error| internal(error.to_string()))?;
        if request.succeeds_with(status) {
            return serde_json::from_slice(&body).map_err(|error| internal(error.to_string()));
        }
        let problem = serde_json::from_slice::<Problem>(&body);
        Err(problem.map_or_else(|_| internal(format!("status {status}")), Failure::from))
    }

    pub(crate) fn close(&self) -> dq_core::Result<()> {
        self.runtime.block_on(self.dq.close())
    }
}
