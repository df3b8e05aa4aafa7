//! The form in which the runner calls every handler: functions, objects and raw handlers.

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::blocking::run_blocking;
use super::context::JobContext;
use super::escalation::{EscalateFrom, Escalation};
use super::extract::decode;
use super::function::HandlerFn;
use super::object::{DelayHandler, RawHandler};
use super::outcome::{JobError, JobResult};
use super::state::Requirements;
use crate::config::{QueueSettings, ScheduleSettings};
use crate::error::{Error, Result};
use crate::model::{Job, QueueCode, QueueName};

type Read = dyn Fn(&Job) -> Result<(), JobError> + Send + Sync;
pub(crate) type Run = dyn Fn(JobContext) -> BoxFuture<'static, JobResult> + Send + Sync;

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
    /// The payload schema version that this build writes; `None` without versions.
    pub(crate) schema_version: Option<u32>,
    /// Checks that the handler can decode a job's payload.
    pub(crate) read: Arc<Read>,
    /// Two objects are always two handlers, but a function may be registered twice.
    pub(crate) is_function: bool,
    pub(crate) run: Arc<Run>,
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
            schema_version: None,
            read: Arc::new(|_| Ok(())),
            is_function: false,
            run,
        }
    }

    /// Converts a function to handlers: one for its code and one per alias.
    ///
    /// Only the code's handler has the schedule, so that an occurrence does not run again for each
    /// alias.
    pub(super) fn of_function<H: HandlerFn>() -> Result<Vec<Self>> {
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
                schema_version: H::VERSION,
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
        let escalation =
            Escalation { steps: object.escalate().into(), from: object.escalate_from() };
        validate_escalation(&queue, &escalation)?;
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
                run_blocking(&run, move || runtime.block_on(object.handle(ctx, payload))).await
            })
        };
        let location = format!("{}:{}", caller.file(), caller.line());
        Ok(Self {
            settings,
            requirements,
            schedule,
            escalation,
            read: Arc::new(|job| decode::<H::Payload>(job).map(drop)),
            ..Self::new(queue, type_name::<H>(), location, Arc::new(run))
        })
    }

    pub(crate) fn internal(queue: QueueName, name: &'static str, run: Arc<Run>) -> Self {
        Self { is_function: true, ..Self::new(queue, name, env!("CARGO_PKG_NAME"), run) }
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
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {} ({})", self.queue, self.name, self.location)
    }
}

fn validate_escalation(queue: &QueueName, escalation: &Escalation) -> Result<()> {
    let Escalation { steps, from } = escalation;
    if steps.contains(&Duration::ZERO) {
        return Err(Error::invalid(format!("a step of the escalation of {queue} has no delay"))
            .remedy(
                "give each step a delay; when the first is due, those say who schedule the job",
            ));
    }
    if *from != EscalateFrom::default() && steps.is_empty() {
        let message =
            format!("the handler of {queue} says from when its steps count, and has no steps");
        return Err(Error::invalid(message)
            .remedy("return their delays from `escalate`, or leave `escalate_from` out"));
    }
    Ok(())
}
