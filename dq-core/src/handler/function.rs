//! Handler functions.

use std::future::Future;

use serde::Serialize;

use super::context::JobContext;
use super::escalation::EscalateFrom;
use super::outcome::{JobError, JobResult};
use super::state::Requirements;
use crate::config::{QueueSettings, ScheduleSettings};
use crate::error::Result;
use crate::model::{Job, Queue};

/// A handler function; `#[delay_handler]` implements it for a type with the function's name.
///
/// For an object as handler, implement [`DelayHandler`](crate::DelayHandler).
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

    /// Decodes a job's payload, in any version the handler reads.
    ///
    /// # Errors
    /// `Undecodable` if the payload has another type.
    fn decode(job: &Job) -> Result<Self::Payload, JobError>;

    /// Decodes the payload, extracts the other arguments and calls the function.
    fn call(ctx: JobContext) -> impl Future<Output = JobResult> + Send + 'static;
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
