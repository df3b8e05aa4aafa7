//! Handlers: functions and objects, their arguments, results, middleware and registry.

mod context;
mod escalation;
mod extract;
mod forward;
mod function;
mod guard;
mod middleware;
mod outcome;
pub(crate) mod panics;
mod registry;
mod state;
mod thread;

pub use context::{JobContext, RunContext};
pub use escalation::EscalateFrom;
pub use extract::{FromJob, Payload, RawPayload, SharedState, State};
pub use forward::ForwardRegistration;
pub(crate) use forward::forward_handler;
#[doc(hidden)]
pub use function::adapter;
pub use function::{DelayHandler, Handler, HandlerFn, RawHandler, Registration};
pub use guard::{Guard, IntoGuard};
pub(crate) use middleware::Timeout;
pub use middleware::{Middleware, Next};
pub use outcome::{HandlerResult, IntoOutcome, JobError, JobResult, Outcome};
pub use registry::Registry;
pub use state::{Requirements, StateMap};
