//! Handlers: functions and objects, their arguments, results, middleware and registry.
//!
//! Begin with `function`: the traits for functions and objects, and the form in which the runner
//! calls both.
//!
//! | Module | Contents |
//! |---|---|
//! | `context`, `extract`, `state` | arguments: the run's context, extractors, application state |
//! | `outcome` | results and errors |
//! | `guard`, `middleware` | code that runs before or around handlers |
//! | `escalation` | delays between a handler's steps |
//! | `forward` | handlers that a queue's configuration selects |
//! | `registry` | a runner's handlers, and their validation |
//! | `panics`, `thread` | caught panics, and threads for blocking handlers |

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
