//! Handlers: annotated functions and objects, and the form in which the runner calls both.
//!
//! A function implements [`HandlerFn`] and becomes a constant [`Registration`]. An object
//! implements [`DelayHandler`]. Both become a [`Handler`].

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::context::JobContext;
use super::escalation::{EscalateFrom, Escalation};
use super::extract::{Payload, decode};
use super::outcome::{HandlerResult, IntoOutcome, JobError, JobResult};
use super::state::Requirements;
use crate::config::{QueueSettings, ScheduleSettings};
use crate::error::{Error, Result};
use crate::model::{Job, Queue, QueueCode, QueueName};

/// A handler function; `#[delay_handler]` implements it for a type with the function's name.
///
/// For an object as handler, implement [`DelayHandler`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a delay handler",
    note = "annotate the function with `#[delay_handler(\"CODE\")]`"
)]
pub trait HandlerFn: Queue + 'static {
    /// The function's path.
    const NAME: &'static str;
    /// The function's source location, as `file:line`.
    const LOCATION: &'static str;

    /// Returns the attribute's settings.
    fn settings() -> QueueSettings;

    /// Returns the attribute's schedule, for the handler's queue.
    ///
    /// # Errors
    /// `Codec` if the default payload does not encode.
    fn schedule() -> Result<Option<ScheduleSettings>> {
        Ok(None)
    }

    /// Declares the arguments' state.
    fn requires(requirements: &mut Requirements);

    /// Earlier codes; the handler runs their jobs too.
    const ALIASES: &'static [&'static str] = &[];

    /// The starting point for the delays in [`Queue::STEPS`].
    const ESCALATE_FROM: EscalateFrom = EscalateFrom::StepEnd;

    /// The oldest schema version that [`decode`](Self::decode) reads; 1 without versions.
    const OLDEST_VERSION: u32 = 1;

    /// Decodes a job's payload, in any version the handler reads.
    ///
    /// # Errors
    /// `Undecodable` if the payload has another type.
    fn decode(job: &Job) -> Result<Self::Payload, JobError>;

    /// Decodes the payload, extracts the other arguments and calls the function.
    fn call(ctx: JobContext) -> impl Future<Output = JobResult> + Send + 'static;
}

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

type Read = dyn Fn(&Job) -> Result<(), JobError> + Send + Sync;
pub(crate) type Run = dyn Fn(JobContext) -> BoxFuture<'static, JobResult> + Send + Sync;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) oldest: u32,
    /// The version written.
    pub(crate) current: u32,
}

/// A handler function registered with `inventory`.
#[derive(Debug)]
pub struct Registration {
    handlers: fn() -> Result<Vec<Handler>>,
}

inventory::collect!(Registration);

impl Registration {
    /// Creates an annotated function's registration.
    pub const fn of<H: HandlerFn>() -> Self {
        Self { handlers: Handler::of_function::<H> }
    }

    /// Creates handlers: one for the code, and one per alias.
    ///
    /// # Errors
    /// `InvalidInput` if a code is not a valid queue name; `Codec` if the schedule's payload does
    /// not encode.
    pub fn handlers(&self) -> Result<Vec<Handler>> {
        (self.handlers)()
    }
}

/// A handler function or object in the form a runner calls.
pub struct Handler {
    pub(crate) queue: QueueName,
    pub(crate) name: &'static str,
    pub(crate) location: Cow<'static, str>,
    pub(crate) settings: QueueSettings,
    pub(crate) requirements: Requirements,
    pub(crate) schedule: Option<ScheduleSettings>,
    /// Earlier codes, under which the handler may have declared the schedule.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) escalation: Escalation,
    pub(crate) versions: Option<Versions>,
    read: Arc<Read>,
    /// A function may be registered twice; two objects are always two handlers.
    pub(crate) is_function: bool,
    run: Arc<Run>,
}

impl Handler {
    fn new(
        queue: QueueName,
        name: &'static str,
        location: impl Into<Cow<'static, str>>,
        run: Arc<Run>,
    ) -> Self {
        Self {
            queue,
            name,
            location: location.into(),
            settings: QueueSettings::default(),
            requirements: Requirements::default(),
            schedule: None,
            aliases: &[],
            escalation: Escalation::default(),
            versions: None,
            read: Arc::new(|_| Ok(())),
            is_function: false,
            run,
        }
    }

    /// Only the code's handler has the schedule, so that an occurrence does not run again for each
    /// alias.
    fn of_function<H: HandlerFn>() -> Result<Vec<Self>> {
        let versions = H::VERSION.map(|current| Versions { oldest: H::OLDEST_VERSION, current });
        let handler_of = |code: &str| {
            let queue = QueueName::new(code).map_err(|error| {
                error.remedy(format!("it is the code of {} at {}", H::NAME, H::LOCATION))
            })?;
            let mut requirements = Requirements::default();
            H::requires(&mut requirements);
            Ok(Self {
                settings: H::settings(),
                requirements,
                escalation: Escalation { steps: H::STEPS.into(), from: H::ESCALATE_FROM },
                versions,
                read: Arc::new(|job| H::decode(job).map(drop)),
                is_function: true,
                ..Self::new(queue, H::NAME, H::LOCATION, Arc::new(|ctx| Box::pin(H::call(ctx))))
            })
        };
        let mut handler = handler_of(&H::code())?;
        handler.schedule = H::schedule()?
            .map(|schedule| ScheduleSettings { schema_version: H::VERSION, ..schedule });
        handler.aliases = H::ALIASES;
        let aliases = H::ALIASES.iter().map(|alias| handler_of(alias));
        std::iter::once(Ok(handler)).chain(aliases).collect()
    }

    /// Converts an object to a handler.
    ///
    /// # Errors
    /// `InvalidInput` if its code is not a valid queue name, or its escalation is inconsistent.
    #[track_caller]
    pub fn from_object<H: DelayHandler>(object: H) -> Result<Self> {
        let caller = std::panic::Location::caller();
        let queue = QueueName::new(object.code().code())?;
        let settings = object.settings();
        let schedule = object.schedule();
        let mut requirements = Requirements::default();
        object.requires(&mut requirements);
        let (steps, from) = (object.escalate(), object.escalate_from());
        if steps.contains(&Duration::ZERO) {
            return Err(Error::invalid(format!(
                "a step of the escalation of {queue} has no delay"
            ))
            .remedy(
                "give each step a delay; when the first is due, those say who schedule the job",
            ));
        }
        if from != EscalateFrom::default() && steps.is_empty() {
            return Err(Error::invalid(format!(
                "the handler of {queue} says from when its steps count, and has no steps"
            ))
            .remedy("return their delays from `escalate`, or leave `escalate_from` out"));
        }
        let object = Arc::new(object);
        let run = move |ctx: JobContext| -> BoxFuture<'static, JobResult> {
            let object = Arc::clone(&object);
            Box::pin(async move {
                let payload = decode::<H::Payload>(ctx.job())?;
                if !H::BLOCKING {
                    return object.handle(ctx, payload).await.map_err(JobError::Failed);
                }
                let runtime = tokio::runtime::Handle::current();
                let run = ctx.clone();
                adapter::blocking(&run, move || runtime.block_on(object.handle(ctx, payload))).await
            })
        };
        let location = format!("{}:{}", caller.file(), caller.line());
        Ok(Self {
            settings,
            requirements,
            schedule,
            escalation: Escalation { steps: steps.into(), from },
            read: Arc::new(|job| decode::<H::Payload>(job).map(drop)),
            ..Self::new(queue, type_name::<H>(), location, Arc::new(run))
        })
    }

    pub(crate) fn internal(queue: QueueName, name: &'static str, run: Arc<Run>) -> Self {
        Self { is_function: true, ..Self::new(queue, name, env!("CARGO_PKG_NAME"), run) }
    }

    pub(crate) fn read(&self, job: &Job) -> Result<(), JobError> {
        (self.read)(job)
    }

    pub(crate) fn from_raw(
        queue: QueueName,
        name: &'static str,
        location: String,
        handler: Arc<dyn RawHandler>,
    ) -> Self {
        let run = move |ctx: JobContext| -> BoxFuture<'static, JobResult> {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler.handle(ctx).await.map_err(JobError::Failed) })
        };
        Self::new(queue, name, location, Arc::new(run))
    }

    pub(crate) fn run(&self, ctx: JobContext) -> BoxFuture<'static, JobResult> {
        (self.run)(ctx)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {} ({})", self.queue, self.name, self.location)
    }
}

/// The payload for a handler's own schedule: its default value.
#[diagnostic::on_unimplemented(
    message = "a handler with a schedule cannot have the payload `{Self}`",
    label = "the jobs of the schedule get the default value of this type",
    note = "leave the payload out, or implement `Default` and `serde::Serialize` for it; for another payload declare the schedule in `[schedules.NAME]` of `dq.toml`, or call `dq.recurring::<handler>(name)`"
)]
pub trait SchedulePayload: Default + Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Default + Serialize> SchedulePayload for T {}

/// Functions for generated code.
#[doc(hidden)]
pub mod adapter {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use std::cell::Cell;
    use std::time::Duration;

    use super::super::guard;
    pub use super::super::guard::GuardFn;
    use super::super::guard::IntoGuard;
    use super::super::outcome::Outcome;
    use super::{
        IntoOutcome, Job, JobContext, JobError, JobResult, Payload, Requirements, SchedulePayload,
        decode,
    };
    use crate::config::LateAction;
    use crate::error::BoxError;
    use crate::model::{Headers, QueueName};
    use crate::trace::CarriedContext;

    pub fn schedule_payload<P: SchedulePayload>() -> crate::error::Result<serde_json::Value> {
        crate::config::payload_json(&P::default())
    }

    pub fn payload<P: Payload>(job: &Job) -> Result<P, JobError> {
        decode(job)
    }

    /// Reads the payload's schema version; 1 without the header.
    pub fn version(job: &Job) -> Result<u32, JobError> {
        let Some(text) = job.headers.get(Headers::SCHEMA_VERSION) else { return Ok(1) };
        text.parse().map_err(|_| {
            JobError::Undecodable(format!("its schema version is {text:?}, not a number").into())
        })
    }

    /// Moves late jobs to a queue. The macro has checked the name.
    pub fn late_queue(name: &str) -> LateAction {
        LateAction::Queue(QueueName::new(name).expect("the macro has checked it"))
    }

    pub fn unreadable<T>(version: u32, oldest: u32, current: u32) -> Result<T, JobError> {
        let what = format!(
            "its schema version is {version}; this build reads {oldest} to {current} (add the \
             older one to `upgrade_from`, or deploy the newer build)"
        );
        Err(JobError::Undecodable(what.into()))
    }

    /// An upgrade function's result: a value, or a `Result`.
    ///
    /// On `&&Upgraded<T>`, method lookup finds [`UpgradedResult`] before [`UpgradedValue`], because
    /// it is implemented for a reference.
    pub struct Upgraded<T>(Cell<Option<T>>);

    impl<T> std::fmt::Debug for Upgraded<T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Upgraded")
        }
    }

    impl<T> Upgraded<T> {
        pub fn new(value: T) -> Self {
            Self(Cell::new(Some(value)))
        }

        fn take(&self) -> T {
            self.0.take().expect("it is taken once")
        }
    }

    pub trait UpgradedResult {
        type Value;
        fn upgraded(&self) -> Result<Self::Value, JobError>;
    }

    impl<T, E: Into<BoxError>> UpgradedResult for &Upgraded<Result<T, E>> {
        type Value = T;
        fn upgraded(&self) -> Result<T, JobError> {
            self.take().map_err(|error| {
                let error: BoxError = error.into();
                JobError::Undecodable(format!("the payload cannot be upgraded: {error}").into())
            })
        }
    }

    pub trait UpgradedValue {
        type Value;
        fn upgraded(&self) -> Result<Self::Value, JobError>;
    }

    impl<T> UpgradedValue for Upgraded<T> {
        type Value = T;
        fn upgraded(&self) -> Result<T, JobError> {
            Ok(self.take())
        }
    }

    pub fn guard_requires<G: GuardFn<M, P>, M, P>(_guard: G, requirements: &mut Requirements) {
        G::requires(requirements);
    }

    /// Asks a handler's guard. Returns the outcome if the handler must not run.
    pub async fn guard<G, M, P>(
        ctx: &JobContext,
        name: &'static str,
        limit: Duration,
        guard: G,
        decode: fn(&Job) -> Result<P, JobError>,
    ) -> Result<Option<Outcome>, JobError>
    where
        G: GuardFn<M, P>,
        G::Answer: IntoGuard,
    {
        let answer = async { guard.ask(ctx, decode).await.map(IntoGuard::into_guard) };
        guard::ask(ctx, name, limit, answer).await
    }

    pub fn outcome<R: IntoOutcome>(returned: R) -> JobResult {
        returned.into_outcome().map_err(JobError::Failed)
    }

    /// Runs a synchronous handler on a thread for blocking calls.
    pub async fn blocking<R, F>(ctx: &JobContext, call: F) -> JobResult
    where
        R: IntoOutcome + 'static,
        F: FnOnce() -> R + Send + 'static,
    {
        let thread = ctx.thread().clone();
        let carried = CarriedContext::current();
        let run = move || {
            let busy = thread.start()?;
            // Converted on that thread, because the return type need not be `Send`.
            let result = catch_unwind(AssertUnwindSafe(|| carried.run(|| outcome(call()))));
            // The thread stays busy until its result is received below or dropped.
            Some((result, busy))
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(Some((Ok(result), _busy))) => result,
            // The runner catches and reports it like any other panic.
            Ok(Some((Err(panic), _busy))) => resume_unwind(panic),
            Ok(None) => Err(JobError::Failed("the run was ended before its thread started".into())),
            Err(failure) => Err(JobError::Failed(failure.into())),
        }
    }
}
