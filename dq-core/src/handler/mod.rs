//! Handlers: functions and objects, their arguments, results, middleware and registry.

#[doc(hidden)]
pub mod adapter;
mod blocking;
mod callable;
mod context;
mod escalation;
mod extract;
mod forward;
mod function;
mod guard;
mod middleware;
mod object;
mod outcome;
pub(crate) mod panics;
mod registry;
mod state;
mod thread;

pub use callable::Handler;
pub use context::{JobContext, RunContext};
pub use escalation::EscalateFrom;
pub(crate) use escalation::Escalation;
pub use extract::{FromJob, Payload, RawPayload, SharedState, State};
pub use forward::ForwardRegistration;
pub(crate) use forward::forward_handler;
pub use function::HandlerFn;
pub use guard::{Guard, IntoGuard};
pub(crate) use middleware::Timeout;
pub use middleware::{Middleware, Next};
pub use object::{DelayHandler, RawHandler};
pub use outcome::{HandlerResult, IntoOutcome, JobError, JobResult, Outcome};
pub use registry::{Registration, Registry};
pub use state::{Requirements, StateMap};
