//! Handlers: annotated functions and objects, and the common form in which the runner calls both.
//!
//! A function implements [`HandlerFn`] and becomes a [`Registration`], which is a constant. An
//! object implements [`DelayHandler`]. Both are converted to a [`Handler`].

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::context::JobContext;
use super::extract::{Payload, decode};
use super::outcome::{HandlerResult, IntoOutcome, JobError, JobResult};
use super::state::Requirements;
use crate::config::QueueSettings;
use crate::error::Result;
use crate::model::{Queue, QueueCode, QueueName};

/// A handler function; implemented by `#[delay_handler]` for a type with the function's name.
///
/// For a handler that is an object, implement [`DelayHandler`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a delay handler",
    note = "annotate the function with `#[delay_handler(\"CODE\")]`"
)]
pub trait HandlerFn: Queue + 'static {
    /// Path of the function.
    const NAME: &'static str;
    /// Source location of the function, as `file:line`.
    const LOCATION: &'static str;
    /// Whether the function is synchronous: it runs on a thread for blocking calls and cannot be
    /// dropped.
    const BLOCKING: bool = false;

    /// The settings of the attribute.
    fn settings() -> QueueSettings;

    /// Declares the state that the arguments need.
    fn requires(requirements: &mut Requirements);

    /// Decodes the payload, extracts the other arguments and calls the function.
    fn call(ctx: JobContext) -> impl Future<Output = JobResult> + Send + 'static;
}

/// A handler that is an object; added to a runner by `runner.handler(object)`.
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
///
/// An object that blocks its thread, and that uses state of the runner:
///
/// ```
/// # use dq_core as dq;
/// # #[derive(Clone)] struct Disk;
/// # impl Disk { fn write(&self, _: u64) {} }
/// struct Renderer;
///
/// impl dq::DelayHandler for Renderer {
///     type Payload = u64;
///     const BLOCKING: bool = true;
///
///     fn code(&self) -> impl dq::QueueCode {
///         "RENDER_INVOICE"
///     }
///
///     fn requires(&self, requirements: &mut dq::Requirements) {
///         requirements.state::<Disk>();
///     }
///
///     async fn handle(&self, ctx: dq::JobContext, invoice: u64) -> dq::HandlerResult {
///         ctx.state::<Disk>().ok_or("no disk")?.write(invoice);
///         Ok(dq::Outcome::Done)
///     }
/// }
/// ```
pub trait DelayHandler: Send + Sync + 'static {
    /// The type of the payload.
    type Payload: Payload;

    /// Whether [`handle`](Self::handle) blocks its thread.
    ///
    /// Each run then has a thread for blocking calls. Such a run cannot be dropped: at its timeout
    /// `ctx.is_cancelled()` becomes true, and its return value counts.
    const BLOCKING: bool = false;

    /// The code, which is the name of the queue.
    fn code(&self) -> impl QueueCode;

    /// Settings that differ from the defaults. The configuration overrides them.
    fn settings(&self) -> QueueSettings {
        QueueSettings::default()
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
    /// its last attempt.
    fn handle(
        &self,
        ctx: JobContext,
        payload: Self::Payload,
    ) -> impl Future<Output = HandlerResult> + Send;
}

type Run = dyn Fn(JobContext) -> BoxFuture<'static, JobResult> + Send + Sync;

/// A handler function as registered with `inventory`; function pointers only, as it must be a
/// constant.
#[derive(Debug)]
pub struct Registration {
    code: fn() -> Cow<'static, str>,
    name: &'static str,
    location: &'static str,
    settings: fn() -> QueueSettings,
    requires: fn(&mut Requirements),
    blocking: bool,
    run: fn(JobContext) -> BoxFuture<'static, JobResult>,
}

inventory::collect!(Registration);

impl Registration {
    /// The registration of an annotated function.
    #[must_use]
    pub const fn of<H: HandlerFn>() -> Self {
        fn run<H: HandlerFn>(ctx: JobContext) -> BoxFuture<'static, JobResult> {
            Box::pin(H::call(ctx))
        }
        Self {
            code: H::code,
            name: H::NAME,
            location: H::LOCATION,
            settings: H::settings,
            requires: H::requires,
            blocking: H::BLOCKING,
            run: run::<H>,
        }
    }

    /// Converts the registration to a handler.
    ///
    /// # Errors
    /// `InvalidInput` if the code is not a valid queue name.
    pub fn handler(&self) -> Result<Handler> {
        let mut requirements = Requirements::default();
        (self.requires)(&mut requirements);
        let queue = QueueName::new((self.code)()).map_err(|error| {
            error.remedy(format!("it is the code of {} at {}", self.name, self.location))
        })?;
        Ok(Handler {
            queue,
            name: self.name,
            location: Cow::Borrowed(self.location),
            settings: (self.settings)(),
            requirements,
            is_function: true,
            is_blocking: self.blocking,
            run: Arc::new(self.run),
        })
    }
}

/// A handler function or object in the form that a runner calls.
pub struct Handler {
    pub(crate) queue: QueueName,
    pub(crate) name: &'static str,
    pub(crate) location: Cow<'static, str>,
    pub(crate) settings: QueueSettings,
    pub(crate) requirements: Requirements,
    /// Made from a function, which may be registered twice; two objects are always two handlers.
    pub(crate) is_function: bool,
    /// Runs on a thread for blocking calls and cannot be dropped.
    pub(crate) is_blocking: bool,
    run: Arc<Run>,
}

impl Handler {
    /// Converts an object to a handler.
    ///
    /// # Errors
    /// `InvalidInput` if its code is not a valid queue name.
    #[track_caller]
    pub fn from_object<H: DelayHandler>(object: H) -> Result<Self> {
        let caller = std::panic::Location::caller();
        let queue = QueueName::new(object.code().code())?;
        let settings = object.settings();
        let mut requirements = Requirements::default();
        object.requires(&mut requirements);
        let object = Arc::new(object);
        let run = move |ctx: JobContext| -> BoxFuture<'static, JobResult> {
            let object = Arc::clone(&object);
            Box::pin(async move {
                let payload = decode::<H::Payload>(&ctx)?;
                if !H::BLOCKING {
                    return object.handle(ctx, payload).await.map_err(JobError::Failed);
                }
                let runtime = tokio::runtime::Handle::current();
                adapter::blocking(move || runtime.block_on(object.handle(ctx, payload))).await
            })
        };
        Ok(Self {
            queue,
            name: type_name::<H>(),
            location: format!("{}:{}", caller.file(), caller.line()).into(),
            settings,
            requirements,
            is_function: false,
            is_blocking: H::BLOCKING,
            run: Arc::new(run),
        })
    }

    /// Runs one job.
    pub(crate) fn run(&self, ctx: JobContext) -> BoxFuture<'static, JobResult> {
        (self.run)(ctx)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {} ({})", self.queue, self.name, self.location)
    }
}

/// Functions that generated code calls.
#[doc(hidden)]
pub mod adapter {
    use super::{IntoOutcome, JobContext, JobError, JobResult, Payload, decode};

    pub fn payload<P: Payload>(ctx: &JobContext) -> Result<P, JobError> {
        decode(ctx)
    }

    pub fn outcome<R: IntoOutcome>(returned: R) -> JobResult {
        returned.into_outcome().map_err(JobError::Failed)
    }

    /// Runs a synchronous handler on a thread for blocking calls.
    pub async fn blocking<R, F>(call: F) -> JobResult
    where
        R: IntoOutcome + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        // Converted on that thread, since the return type need not be `Send`.
        match tokio::task::spawn_blocking(move || outcome(call())).await {
            Ok(result) => result,
            Err(failure) => match failure.try_into_panic() {
                // The runner catches it again and reports it like any other panic.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => Err(JobError::Failed(cancelled.into())),
            },
        }
    }
}
