//! The core of `dq`, a framework for delayed jobs.
//!
//! Applications and backend authors use the facade crate `dq` (`dq::backend`). This page is for
//! work on the framework itself. Read the modules in this order; each one uses only earlier ones:
//! - [`error`][]: the error type and its kinds;
//! - [`model`][]: a job, its names, times and limits;
//! - [`clock`], [`entropy`]: replaceable time and randomness;
//! - [`trace`][]: trace context in job headers;
//! - [`backend`][]: the [`Backend`] trait, the contract of a store;
//! - [`machine`][]: the contract's reference implementation, a state machine;
//! - [`config`][]: configuration files, and backends by name and URL;
//! - [`memory`][]: the memory backend;
//! - [`handler`][]: handlers, their arguments, outcomes and registry;
//! - [`client`][]: scheduling and administration, for applications;
//! - [`schedules`][]: recurring jobs;
//! - [`ingress`][]: sources of messages that become jobs;
//! - [`runner`][]: claims due jobs and runs their handlers;
//! - [`pull`][]: claims and settles jobs for workers in other processes;
//! - [`simulate`][]: plays pending jobs and schedules on a virtual clock.
//!
//! `sync` has the locks and uses only the standard library.

#[macro_use]
mod setters;

pub mod backend;
pub mod client;
pub mod clock;
pub mod config;
pub mod entropy;
pub mod error;
pub mod handler;
pub mod ingress;
pub mod machine;
pub mod memory;
pub mod model;
pub mod pull;
pub mod runner;
pub mod schedules;
pub mod simulate;
#[doc(hidden)]
pub mod sync;
pub mod trace;

pub use async_trait::async_trait;
pub use backend::*;
pub use client::{
    Browse, Bulk, Count, Dq, DqBuilder, Filter, ForecastMinute, ImportPreview, ImportReport,
    ImportSource, IntoKey, IntoTarget, IntoTimestamp, Progress, QueueForecast, QueueHandle,
    RegisteredRunner, Schedule, ScheduleMany, UnreadableInfo, import,
};
pub use clock::{Clock, SystemClock, VirtualClock};
pub use entropy::Entropy;
pub use error::{BoxError, Error, ErrorKind, Result};
pub use handler::*;
pub use ingress::{Ingress, IngressRegistration, IngressSource};
pub use memory::MemoryBackend;
pub use model::*;
pub use pull::{
    Loss, PullLease, PullOutcome, PullRenewed, PullRequest, PullServer, PullSettled, Pulled,
    PulledJob,
};
pub use runner::{
    Event, Observer, PendingQueue, PendingReport, PendingVersion, RunDueReport, Runner,
    RunnerBuilder, shutdown_signal,
};
pub use schedules::{Backfilled, RecurringSchedule, ScheduleView};
pub use simulate::{QueueSimulation, Simulation, SimulationReport};
pub use trace::{Propagator, TraceContext};

/// Items for macro-generated code. Not public API; may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use std::borrow::Cow;
    pub use std::num::NonZeroU32;
    pub use std::option::Option;
    pub use std::primitive::{str, u32};
    pub use std::result::Result;
    pub use std::time::Duration;

    pub use inventory;

    pub use crate::config::{
        BackoffSettings, LateAction, LatePolicy, QueueSettings, ScheduleSettings,
    };
    pub use crate::error::Result as DqResult;
    pub use crate::handler::{
        EscalateFrom, FromJob, HandlerFn, IntoOutcome, JobContext, JobError, JobResult, Payload,
        Registration, Requirements, adapter,
    };
    pub use crate::model::{CatchUp, Job, Overlap, Priority, Queue, QueueCode, Rate};
}
