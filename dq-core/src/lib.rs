//! The model and the machine of `dq`, delayed jobs for Rust: what a job is, what a store must do,
//! how a handler is found and run. Applications use the facade crate; this one is for those who
//! write a backend.

pub mod backend;
pub mod client;
pub mod clock;
pub mod config;
pub mod entropy;
pub mod error;
pub mod handler;
pub mod machine;
pub mod memory;
pub mod model;
pub mod runner;
#[doc(hidden)]
pub mod sync;
pub mod trace;

pub use async_trait::async_trait;
pub use backend::*;
pub use client::{
    Dq, DqBuilder, ImportReport, ImportSource, IntoKey, IntoTarget, IntoTimestamp, QueueHandle,
    Schedule, ScheduleMany, import,
};
pub use clock::{Clock, SystemClock, VirtualClock};
pub use entropy::Entropy;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use handler::*;
pub use memory::MemoryBackend;
pub use model::*;
pub use runner::{Event, Observer, Runner, RunnerBuilder};
pub use trace::{Propagator, TraceContext};

/// What generated code speaks to. Not for use by hand; it may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use std::borrow::Cow;
    pub use std::primitive::{str, u32};
    pub use std::time::Duration;

    pub use inventory;

    pub use crate::config::{BackoffSettings, QueueSettings};
    pub use crate::handler::{
        FromJob, HandlerFn, IntoOutcome, JobContext, JobError, JobResult, Payload, Registration,
        Requirements, adapter,
    };
    pub use crate::model::{Queue, QueueCode};
}
