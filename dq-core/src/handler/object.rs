//! Handler objects: for typed payloads and for raw ones.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;

use super::context::JobContext;
use super::escalation::EscalateFrom;
use super::extract::Payload;
use super::outcome::HandlerResult;
use super::state::Requirements;
use crate::config::{QueueSettings, ScheduleSettings};
use crate::model::QueueCode;

/// A handler object; add it with `runner.handler(object)`.
///
/// ```
/// # use dq_core as dq;
/// struct Mailer { from: String }
///
/// #[derive(serde::Deserialize)]
/// struct Mail { to: String }
///
/// impl dq::DelayHandler for Mailer {
///     type Payload = Mail;
///
///     fn code(&self) -> impl dq::QueueCode {
///         "SEND_MAIL"
///     }
///
///     async fn handle(&self, _ctx: dq::JobContext, mail: Mail) -> dq::HandlerResult {
///         println!("{} → {}", self.from, mail.to);
///         Ok(dq::Outcome::Done)
///     }
/// }
/// ```
pub trait DelayHandler: Send + Sync + 'static {
    /// The payload's type.
    type Payload: Payload;

    /// Whether [`handle`](Self::handle) blocks its thread.
    ///
    /// Each run then gets a thread for blocking calls. The runner cannot drop such a run: at its
    /// timeout `ctx.is_cancelled()` becomes true, and the return value counts.
    const BLOCKING: bool = false;

    /// Returns the code, which is the queue name.
    fn code(&self) -> impl QueueCode;

    /// Returns settings that differ from the defaults.
    ///
    /// The configuration overrides them. `history` and `spread` have no effect here; set them in
    /// the configuration.
    fn settings(&self) -> QueueSettings {
        QueueSettings::default()
    }

    /// Returns a schedule for this handler, if any. Its name is the code, its queue the handler's.
    fn schedule(&self) -> Option<ScheduleSettings> {
        None
    }

    /// Returns the escalation's delays, one per step; empty for none.
    ///
    /// The first delay is ignored: producers (`queue!`, the HTTP API) do not know it, and choose
    /// the first due time themselves. Later delays count from
    /// [`escalate_from`](Self::escalate_from). To go on, return
    /// [`Outcome::next_step`](crate::Outcome::next_step).
    fn escalate(&self) -> Vec<Duration> {
        Vec::new()
    }

    /// Returns the starting point for delays after the first. Default: the end of the step before.
    fn escalate_from(&self) -> EscalateFrom {
        EscalateFrom::default()
    }

    /// Declares the state that [`handle`](Self::handle) takes from the context, so that
    /// [`RunnerBuilder::build`](crate::RunnerBuilder::build) fails if it is missing.
    fn requires(&self, requirements: &mut Requirements) {
        let _ = requirements;
    }

    /// Runs one job.
    ///
    /// # Errors
    /// Any error. The attempt counts as failed: the job is retried after its backoff, or dead after
    /// the last attempt.
    fn handle(
        &self,
        ctx: JobContext,
        payload: Self::Payload,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// A handler for raw payloads of any content type.
///
/// Add it with `runner.raw_handler("QUEUE", handler)`.
///
/// ```
/// # use dq_core as dq;
/// struct Archive;
///
/// #[dq::async_trait]
/// impl dq::RawHandler for Archive {
///     async fn handle(&self, job: dq::JobContext) -> dq::HandlerResult {
///         println!("{} has {} bytes", job.id(), job.raw_payload().len());
///         Ok(dq::Outcome::Done)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> dq::Result<()> {
/// # let dq = dq::Dq::connect("memory:").await?;
/// let runner = dq.runner().raw_handler("ARCHIVE", Archive).build()?;
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait RawHandler: Send + Sync + 'static {
    /// Runs one job.
    ///
    /// # Errors
    /// Any error. The attempt counts as failed: the job is retried after its backoff, or dead after
    /// the last attempt.
    async fn handle(&self, job: JobContext) -> HandlerResult;
}
