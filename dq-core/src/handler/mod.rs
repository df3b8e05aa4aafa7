//! Handlers: functions and objects, their arguments, results, middleware and registry.

mod context;
mod extract;
mod function;
mod middleware;
mod outcome;
mod registry;
mod state;

pub use context::{JobContext, RunContext};
pub use extract::{FromJob, Payload, RawPayload, SharedState, State};
#[doc(hidden)]
pub use function::adapter;
pub use function::{DelayHandler, Handler, HandlerFn, Registration};
pub use middleware::{Middleware, Next};
pub use outcome::{HandlerResult, IntoOutcome, JobError, JobResult, Outcome};
pub use registry::Registry;
pub use state::{Requirements, StateMap};
