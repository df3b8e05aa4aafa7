//! Handlers: annotated functions and objects, and the common form in which the runner calls both.
//!
//! A function implements [`HandlerFn`] and becomes a [`Registration`], which is a constant. An
//! object implements [`DelayHandler`]. Both are converted to a [`Handler`].

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

    /// The settings of the attribute.
    fn settings() -> QueueSettings;

    /// The schedule of the attribute. Its queue is that of the handler.
    ///
    /// # Errors
    /// `Codec` if the default payload does not encode.
    fn schedule() -> Result<Option<ScheduleSettings>> {
        Ok(None)
    }

    /// Declares the state that the arguments need.
    fn requires(requirements: &mut Requirements);

    /// Codes that the handler had earlier; it runs their jobs, too.
    const ALIASES: &'static [&'static str] = &[];

    /// From when the delays of [`Queue::STEPS`] count.
    const ESCALATE_FROM: EscalateFrom = EscalateFrom::StepEnd;

    /// The oldest version of the payload's schema that [`decode`](Self::decode) reads; 1 if the
    /// queue has no versions.
    const OLDEST_VERSION: u32 = 1;

    /// Decodes the payload of a job, of any version that the handler reads.
    ///
    /// # Errors
    /// `Undecodable` if the payload is not of that type.
    fn decode(job: &Job) -> Result<Self::Payload, JobError>;

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

    /// Settings that differ from the defaults. The configuration overrides them. `history` and
    /// `spread` have no effect here: they are read from the configuration.
    fn settings(&self) -> QueueSettings {
        QueueSettings::default()
    }

    /// A schedule of jobs for this handler, if it declares one: its name is the code, and its queue
    /// that of the handler.
    fn schedule(&self) -> Option<ScheduleSettings> {
        None
    }

    /// The delays of an escalation, one for each step; empty for none. The first is not applied here:
    /// producers of an object's queue (`queue!`, the HTTP API) do not know it, and say themselves when the
    /// first step is due. Each further delay counts as [`escalate_from`](Self::escalate_from) says. A
    /// handler goes on to the next step by [`Outcome::next_step`](crate::Outcome::next_step).
    fn escalate(&self) -> Vec<Duration> {
        Vec::new()
    }

    /// From when the delays of the steps after the first count: by default, from the end of the step
    /// before.
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
    /// its last attempt.
    fn handle(
        &self,
        ctx: JobContext,
        payload: Self::Payload,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// A handler that takes payloads as they are, of any content type; added to a runner by
/// `runner.raw_handler("QUEUE", handler)`.
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
    /// its last attempt.
    async fn handle(&self, job: JobContext) -> HandlerResult;
}

type Read = dyn Fn(&Job) -> Result<(), JobError> + Send + Sync;
pub(crate) type Run = dyn Fn(JobContext) -> BoxFuture<'static, JobResult> + Send + Sync;

/// The versions of the payload's schema that a handler reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) oldest: u32,
    /// Payloads are written in this one.
    pub(crate) current: u32,
}

/// A handler function as registered with `inventory`; function pointers only, as it must be a
/// constant.
#[derive(Debug)]
pub struct Registration {
    code: fn() -> Cow<'static, str>,
    name: &'static str,
    location: &'static str,
    settings: fn() -> QueueSettings,
    schedule: fn() -> Result<Option<ScheduleSettings>>,
    requires: fn(&mut Requirements),
    steps: &'static [Duration],
    escalate_from: EscalateFrom,
    versions: Option<Versions>,
    aliases: &'static [&'static str],
    read: fn(&Job) -> Result<(), JobError>,
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
        fn read<H: HandlerFn>(job: &Job) -> Result<(), JobError> {
            H::decode(job).map(drop)
        }
        Self {
            code: H::code,
            name: H::NAME,
            location: H::LOCATION,
            settings: H::settings,
            schedule: H::schedule,
            requires: H::requires,
            steps: H::STEPS,
            escalate_from: H::ESCALATE_FROM,
            versions: match H::VERSION {
                Some(current) => Some(Versions { oldest: H::OLDEST_VERSION, current }),
                None => None,
            },
            aliases: H::ALIASES,
            read: read::<H>,
            run: run::<H>,
        }
    }

    /// Converts the registration to handlers: one for its code, and one for each alias. Only that of
    /// its code has the schedule; otherwise each occurrence would run once for each alias, too.
    ///
    /// # Errors
    /// `InvalidInput` if a code is not a valid queue name; `Codec` if the payload of the schedule does
    /// not encode.
    pub fn handlers(&self) -> Result<Vec<Handler>> {
        let mut handler = self.handler_of(&(self.code)())?;
        let schema_version = self.versions.map(|versions| versions.current);
        handler.schedule =
            (self.schedule)()?.map(|schedule| ScheduleSettings { schema_version, ..schedule });
        handler.aliases = self.aliases;
        let aliases = self.aliases.iter().map(|alias| self.handler_of(alias));
        std::iter::once(Ok(handler)).chain(aliases).collect()
    }

    fn handler_of(&self, code: &str) -> Result<Handler> {
        let mut requirements = Requirements::default();
        (self.requires)(&mut requirements);
        let queue = QueueName::new(code).map_err(|error| {
            error.remedy(format!("it is the code of {} at {}", self.name, self.location))
        })?;
        Ok(Handler {
            settings: (self.settings)(),
            requirements,
            escalation: Escalation { steps: self.steps.into(), from: self.escalate_from },
            versions: self.versions,
            read: Arc::new(self.read),
            is_function: true,
            ..Handler::new(queue, self.name, self.location, Arc::new(self.run))
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
    /// The schedule that the handler declares.
    pub(crate) schedule: Option<ScheduleSettings>,
    /// Codes that the handler had earlier, under which it may have declared the schedule.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) escalation: Escalation,
    pub(crate) versions: Option<Versions>,
    read: Arc<Read>,
    /// Made from a function, which may be registered twice; two objects are always two handlers.
    pub(crate) is_function: bool,
    run: Arc<Run>,
}

impl Handler {
    /// An object that takes any payload, without settings, state or schedule.
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

    /// Converts an object to a handler.
    ///
    /// # Errors
    /// `InvalidInput` if its code is not a valid queue name, or its escalation makes no sense.
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

    /// A handler of the framework for a reserved queue.
    pub(crate) fn internal(queue: QueueName, name: &'static str, run: Arc<Run>) -> Self {
        Self { is_function: true, ..Self::new(queue, name, env!("CARGO_PKG_NAME"), run) }
    }

    /// Whether this build can read the payload of a job.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn read(&self, job: &Job) -> Result<(), JobError> {
        (self.read)(job)
    }

    /// Converts a handler of encoded payloads.
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

/// A payload of a handler that declares a schedule: its jobs get the default value.
#[diagnostic::on_unimplemented(
    message = "a handler with a schedule cannot have the payload `{Self}`",
    label = "the jobs of the schedule get the default value of this type",
    note = "leave the payload out, or implement `Default` and `serde::Serialize` for it; for another payload declare the schedule in `[schedules.NAME]` of `dq.toml`, or call `dq.recurring::<handler>(name)`"
)]
pub trait SchedulePayload: Default + Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Default + Serialize> SchedulePayload for T {}

/// Functions that generated code calls.
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

    /// The payload of the jobs of a handler's schedule.
    pub fn schedule_payload<P: SchedulePayload>() -> crate::error::Result<serde_json::Value> {
        crate::config::payload_json(&P::default())
    }

    pub fn payload<P: Payload>(job: &Job) -> Result<P, JobError> {
        decode(job)
    }

    /// The version of the payload's schema; 1 if the job was scheduled without one.
    pub fn version(job: &Job) -> Result<u32, JobError> {
        let Some(text) = job.headers.get(Headers::SCHEMA_VERSION) else { return Ok(1) };
        text.parse().map_err(|_| {
            JobError::Undecodable(format!("its schema version is {text:?}, not a number").into())
        })
    }

    /// The action that moves late jobs to a queue, whose name the macro has checked.
    pub fn late_queue(name: &str) -> LateAction {
        LateAction::Queue(QueueName::new(name).expect("the macro has checked it"))
    }

    /// The error for a version that a handler does not read.
    pub fn unreadable<T>(version: u32, oldest: u32, current: u32) -> Result<T, JobError> {
        let what = format!(
            "its schema version is {version}; this build reads {oldest} to {current} (add the \
             older one to `upgrade_from`, or deploy the newer build)"
        );
        Err(JobError::Undecodable(what.into()))
    }

    /// The result of a function that upgrades a payload: a value, or a `Result`.
    ///
    /// On `&&Upgraded<T>`, method lookup finds [`UpgradedResult`], which is implemented for a
    /// reference, before [`UpgradedValue`].
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

    /// Declares the state that the arguments of a guard need.
    pub fn guard_requires<G: GuardFn<M, P>, M, P>(_guard: G, requirements: &mut Requirements) {
        G::requires(requirements);
    }

    /// Asks the guard of a handler; returns the outcome of the run if the handler must not run.
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
            // Converted on that thread, since the return type need not be `Send`.
            let result = catch_unwind(AssertUnwindSafe(|| carried.run(|| outcome(call()))));
            // The thread stays busy until its result is received below, or dropped.
            Some((result, busy))
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(Some((Ok(result), _busy))) => result,
            // The runner catches it again and reports it like any other panic.
            Ok(Some((Err(panic), _busy))) => resume_unwind(panic),
            Ok(None) => Err(JobError::Failed("the run was ended before its thread started".into())),
            Err(failure) => Err(JobError::Failed(failure.into())),
        }
    }
}
