//! Handlers: annotated functions and objects, and the one form both are run in.

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::extract::decode;
use super::{HandlerResult, IntoOutcome, JobContext, JobError, JobResult, Payload, Requirements};
use crate::config::QueueSettings;
use crate::error::Result;
use crate::model::{Queue, QueueCode, QueueName};

/// What `#[delay_handler]` implements for the name of the function.
///
/// Not written by hand; for objects that carry state see [`DelayHandler`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a delay handler",
    note = "annotate the function with `#[delay_handler(\"CODE\")]`"
)]
pub trait HandlerFn: Queue + 'static {
    /// Path of the function.
    const NAME: &'static str;
    /// Where it stands, as `file:line`.
    const LOCATION: &'static str;
    /// Whether it is a synchronous function, which runs on a thread and cannot be stopped.
    const BLOCKING: bool = false;

    /// What the attribute says about retries, timeout and lease.
    fn settings() -> QueueSettings;

    /// Gathers what the arguments need.
    fn requires(requirements: &mut Requirements);

    /// Makes the arguments and calls the function.
    fn call(ctx: JobContext) -> impl Future<Output = JobResult> + Send + 'static;
}

/// A handler that is an object with state of its own; hand it to the runner with
/// `runner.handler(object)`.
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
    /// What its jobs carry.
    type Payload: Payload;

    /// The code, which names the queue.
    fn code(&self) -> impl QueueCode;

    /// Retries, timeout and lease, where they differ from the defaults. Configuration wins.
    fn settings(&self) -> QueueSettings {
        QueueSettings::default()
    }

    /// Runs one job.
    fn handle(
        &self,
        ctx: JobContext,
        payload: Self::Payload,
    ) -> impl Future<Output = HandlerResult> + Send;
}

type Run = dyn Fn(JobContext) -> BoxFuture<'static, JobResult> + Send + Sync;

/// A handler as `inventory` carries it: plain pointers, so that it can be made in a constant.
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

    /// The handler, with its code checked.
    ///
    /// # Errors
    /// `InvalidInput` if the code is no valid queue name.
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

/// A handler that is ready to run.
pub struct Handler {
    pub(crate) queue: QueueName,
    pub(crate) name: &'static str,
    pub(crate) location: Cow<'static, str>,
    pub(crate) settings: QueueSettings,
    pub(crate) requirements: Requirements,
    /// Functions are one handler however often they are registered; objects are each their own.
    pub(crate) is_function: bool,
    /// Runs on a thread, so it cannot be dropped, only be told to stop.
    pub(crate) is_blocking: bool,
    run: Arc<Run>,
}

impl Handler {
    /// The handler that an object is.
    ///
    /// # Errors
    /// `InvalidInput` if its code is no valid queue name.
    #[track_caller]
    pub fn from_object<H: DelayHandler>(object: H) -> Result<Self> {
        let caller = std::panic::Location::caller();
        let queue = QueueName::new(object.code().code())?;
        let settings = object.settings();
        let object = Arc::new(object);
        let run = move |ctx: JobContext| -> BoxFuture<'static, JobResult> {
            let object = Arc::clone(&object);
            Box::pin(async move {
                let payload = decode::<H::Payload>(&ctx)?;
                object.handle(ctx, payload).await.map_err(JobError::Failed)
            })
        };
        Ok(Self {
            queue,
            name: type_name::<H>(),
            location: format!("{}:{}", caller.file(), caller.line()).into(),
            settings,
            requirements: Requirements::default(),
            is_function: false,
            is_blocking: false,
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

/// The last steps of a generated adapter.
#[doc(hidden)]
pub mod adapter {
    use super::{IntoOutcome, JobContext, JobError, JobResult, Payload, decode};

    pub fn payload<P: Payload>(ctx: &JobContext) -> Result<P, JobError> {
        decode(ctx)
    }

    pub fn outcome<R: IntoOutcome>(returned: R) -> JobResult {
        returned.into_outcome().map_err(JobError::Failed)
    }

    /// Runs a synchronous handler on a thread where it may block.
    pub async fn blocking<R, F>(call: F) -> JobResult
    where
        R: IntoOutcome + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        // The outcome is made inside, so that a return type that is not `Send` is no obstacle.
        match tokio::task::spawn_blocking(move || outcome(call())).await {
            Ok(result) => result,
            Err(failure) => match failure.try_into_panic() {
                // The runner catches it again, where all panics are told.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => Err(JobError::Failed(cancelled.into())),
            },
        }
    }
}
