//! Delayed jobs, typed end to end, on the store you already run.
//!
//! You write an async function and schedule calls to it. A runner makes each call when it is due,
//! in this process or another, even if the process that scheduled it was killed.
//!
//! ```standalone_crate
//! use dq::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct UnpaidOrder {
//!     id: u64,
//! }
//!
//! #[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
//! async fn order_timeout(order: UnpaidOrder) -> HandlerResult {
//!     println!("order {} was not paid in time", order.id);
//!     Ok(Outcome::Done)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! let dq = Dq::connect("memory:").await?; // or "sqlite://jobs.db"
//! let order = UnpaidOrder { id: 1001 };
//! let scheduled = dq.schedule::<order_timeout>(order).after(15.minutes()).key(1001).await?;
//! println!("due at {}", scheduled.due());
//!
//! let shutdown = async {}; // in a program: dq::shutdown_signal()
//! dq.runner().run_until(shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Contents: [schedule](#schedule), [keys](#keys), [handle](#handle),
//! [results](#what-a-handler-returns), [run](#run), [operate](#inspect-and-operate),
//! [test](#test), [configure](#configure), [several stores](#several-stores),
//! [backends and features](#backends-and-features).
//!
//! # Schedule
//!
//! Name a handler function in [`Dq::schedule`]; it determines the queue and the payload type. The
//! call returns a builder. `.await` stores the job and returns a [`Scheduled`].
//!
//! ```
//! # use dq::prelude::*;
//! # #[delay_handler("SEND_MAIL")]
//! # async fn send_mail(to: String) {}
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! # let dq = Dq::connect("memory:").await?;
//! let bob = "bob".to_owned();
//! let _ = dq.schedule::<send_mail>(bob.clone()).await?; // due at once
//! let _ = dq.schedule::<send_mail>(bob.clone()).after(2.hours()).await?; // a delay
//! let time = Timestamp::from_millis(1_900_000_000_000);
//! let _ = dq.schedule::<send_mail>(bob).at(time).await?;
//!
//! let names = ["ann", "bob", "eve"].map(str::to_owned);
//! dq.schedule_many(names.map(|to| dq.schedule::<send_mail>(to).after(1.minutes()))).await?;
//! # Ok(())
//! # }
//! ```
//!
//! If another service has the handler, declare its queue with [`queue!`][]:
//! `dq::queue!(pub SEND_MAIL: String);`. Use [`Dq::queue`] for payloads that are not JSON, and for
//! queue names you learn at run time.
//!
//! # Keys
//!
//! A key is text or an integer. Within a queue, at most one live job (scheduled, ready or running)
//! has a given key. [`OnConflict`] decides what happens to a second one. You cancel, reschedule and
//! find jobs by key, or by the id in a [`Scheduled`].
//!
//! ```
//! # use dq::prelude::*;
//! # #[delay_handler("REMINDER")]
//! # async fn reminder(text: String) {}
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! # let dq = Dq::connect("memory:").await?;
//! let job = |text: &str| dq.schedule::<reminder>(text.to_owned()).after(1.hours()).key(17);
//!
//! assert!(matches!(job("first").await?, Scheduled::Created(_)));
//! assert!(matches!(job("second").await?, Scheduled::Kept(_))); // the first one stays
//! let third = job("third").on_conflict(OnConflict::Replace).await?; // its delay starts now
//! assert!(matches!(third, Scheduled::Replaced(_)));
//!
//! let view = dq.get::<reminder>(17).await?.expect("it waits");
//! assert_eq!(view.payload::<String>()?, "third");
//!
//! let moved = dq.reschedule::<reminder>(17, 2.hours()).await?;
//! assert!(matches!(moved, Rescheduled::Moved(_)));
//! assert_eq!(dq.cancel::<reminder>(17).await?, Cancelled::Cancelled); // it will never start
//! # Ok(())
//! # }
//! ```
//!
//! # Handle
//!
//! [`#[delay_handler]`](macro@delay_handler) turns a function into a queue's handler. Its arguments
//! are extractors, then the payload. Extractors are [`JobContext`] (id, attempt, cancellation, …),
//! [`State`] (a value you gave the runner), [`RawPayload`], and your own [`FromJob`] types. Add
//! `blocking` to the attribute for a plain `fn`; it runs on a thread for blocking calls.
//!
//! ```standalone_crate
//! # use dq::prelude::*;
//! # use std::sync::Arc;
//! struct Db; // not `Clone`, so it is shared by an `Arc`
//! # impl Db { async fn close_order(&self, _: u64, _: dq::FencingToken) -> std::io::Result<()> { Ok(()) } }
//!
//! #[delay_handler("CLOSE_ORDER", concurrency = 8, backoff(initial = "5s", max = "10m"))]
//! async fn close_order(ctx: JobContext, State(db): State<Arc<Db>>, id: u64) -> HandlerResult {
//!     println!("attempt {} of {}", ctx.attempt(), ctx.max_attempts());
//!     db.close_order(id, ctx.fencing_token()).await?;
//!     Ok(Outcome::Done)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! # let dq = Dq::connect("memory:").await?;
//! # let shutdown = async {};
//! dq.runner().state(Arc::new(Db)).run_until(shutdown).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A job runs at least once. It can run twice if its runner is killed or loses the lease. Make your
//! handlers idempotent, or store [`JobContext::fencing_token`] with the data they write.
//!
//! Implement [`DelayHandler`] to use an object as a handler, and [`Middleware`] to run code around
//! every handler.
//!
//! # What a handler returns
//!
//! | Result | Meaning |
//! |---|---|
//! | `()`, [`Outcome::Done`] | the job is done and leaves the store |
//! | [`Outcome::skip("why")`](Outcome::skip) | there was nothing to do; counted as skipped |
//! | [`Outcome::snooze(1.minutes())`](Outcome::snooze) | run again then; uses no attempt |
//! | [`Outcome::again(1.days(), &payload)?`](Outcome::again) | the next step of the same job: run again then, with this payload |
//! | [`Outcome::dead("why")`](Outcome::dead) | keep the job as dead; no retry |
//! | any error, a panic, a timeout | retry after the backoff; dead after the last attempt |
//!
//! A payload that fails to decode makes the job dead at once. Dead jobs stay in the store until you
//! replay or remove them.
//!
//! # Run
//!
//! [`Dq::runner`] serves the queues of all `#[delay_handler]` functions in linked crates.
//! [`RunnerBuilder::run_until`] runs until the future you pass completes, such as
//! [`shutdown_signal`]. Then it gives running handlers the grace period to finish. Run it beside a
//! web server, or in as many processes as you like. [`RunnerBuilder::only`] serves some of the
//! queues.
//!
//! A crate that your program never names is not linked, so its handlers are missing. Write
//! `use my_handlers as _;` to link it.
//!
//! # Inspect and operate
//!
//! ```
//! # use dq::prelude::*;
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! # let dq = Dq::connect("memory:").await?;
//! for stats in dq.stats().await? {
//!     let queue = dq.queue(&stats.queue)?;
//!     println!("{}: {} scheduled, {} dead", queue.name(), stats.scheduled, stats.dead);
//!     for view in queue.browse(JobState::Dead).await?.jobs {
//!         println!("  {} {:?}", view.job.id, view.payload::<serde_json::Value>());
//!     }
//!     queue.replay_all().await?; // also: remove, cancel_where, pause, resume, purge
//! }
//! for finding in dq.check().await {
//!     println!("{finding}"); // such as a server setting that loses jobs
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Dq::runners`] lists the runners with their load. [`QueueHandle::forecast`] counts jobs by due
//! time. A [`Filter`] selects jobs for a [listing](QueueHandle::browse) or a [bulk change](Bulk).
//! [`Dq::backend_as`] returns the store as its own type.
//!
//! With `history` set, and always on RabbitMQ, the store keeps ended jobs in the history for a
//! while. [`Dq::get`] and `browse(JobState::Ended)` return them.
//!
//! # Test
//!
//! `dq-testkit` runs handlers on a virtual clock, inside your test and without a server.
//!
//! ```standalone_crate
//! # use dq::prelude::*;
//! use dq_testkit::TestKit;
//!
//! #[delay_handler("ORDER_TIMEOUT")]
//! async fn order_timeout(id: u64) {
//!     println!("order {id} was not paid in time");
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> dq::Result<()> {
//! let kit = TestKit::new().await?;
//! let _ = kit.dq().schedule::<order_timeout>(1001).after(15.minutes()).await?;
//! assert!(kit.advance(14.minutes()).await.is_empty());
//! assert_eq!(kit.advance(1.minutes()).await[0].outcome(), "done");
//! # Ok(())
//! # }
//! ```
//!
//! # Configure
//!
//! Configure the client by URL, file, environment variables, or in code:
//!
//! ```no_run
//! # use dq::prelude::*;
//! # async fn connect() -> dq::Result<()> {
//! let dq = Dq::connect("sqlite://jobs.db").await?;
//! let dq = Dq::from_config("dq.toml").await?; // overridden by variables
//! let dq = Dq::from_env().await?; // DQ_BACKEND__TYPE=sqlite DQ_BACKEND__PATH=jobs.db
//! let dq = Dq::builder()
//!     .url("sqlite://jobs.db")
//!     .defaults(QueueSettings::new().max_attempts(8).lease(1.minutes()))
//!     .connect()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Config`](config::Config) describes the file and the variables, and
//! [`QueueSettings`](config::QueueSettings) a queue's settings. Logs go to `tracing`. For metrics,
//! pass the runner an [`Observer`]; it receives each event.
//!
//! # Several stores
//!
//! You can move to another store without losing jobs: make it the main store and list the old one
//! under `[[drain]]`. The old store receives no new jobs, and its jobs still run. Cancelling,
//! rescheduling and statistics include it.
//!
//! [`Dq::import`] moves jobs from other systems, such as a sorted set in Redis.
//!
//! # Backends and features
//!
//! | Feature | `type` in `dq.toml` | URL | Settings |
//! |---|---|---|---|
//! | none | `memory` | `memory:` | none |
//! | `sqlite` (default), `sqlite-system` | `sqlite` | `sqlite://jobs.db` | `dq::sqlite::SqliteConfig` |
//! | `postgres` | `postgres` | `postgres://user@host/database` | `dq::postgres::PostgresConfig` |
//! | `redis` | `redis`, `redisson`, `redis-expiry` | `redis://host/0`, `redisson://…`, `redis-expiry://…` | `dq::redis::RedisConfig`, `RedissonConfig`, `RedisExpiryConfig` |
//! | `rabbitmq` | `rabbitmq` | `amqp://user:password@host/vhost` | `dq::rabbit::RabbitConfig` |
//!
//! `sqlite` builds SQLite from source. To link the installed library, turn off default features and
//! turn on `sqlite-system`. To write your own backend, see the module [`backend`].

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod prelude;

// The client and its results.
#[doc(inline)]
pub use dq_core::{
    Browse, Bulk, Cancelled, Cursor, Dq, DqBuilder, Filter, Finding, ForecastMinute, ImportPreview,
    ImportReport, ImportSource, IntoDue, IntoKey, IntoTarget, IntoTimestamp, LatenessCause,
    LatenessCounts, LatenessObjective, LatenessStatus, Order, Page, Progress, QueueForecast,
    QueueHandle, QueueSimulation, QueueStats, Receipt, RegisteredRunner, Rescheduled, Schedule,
    ScheduleMany, Scheduled, Severity, Simulation, SimulationReport, SqlStatement, Totals,
    UnreadableInfo, import,
};
// Recurring jobs.
#[doc(inline)]
pub use dq_core::{Backfilled, CatchUp, Overlap, RecurringSchedule, ScheduleSpec, ScheduleView};
// Jobs and queues.
#[doc(inline)]
pub use dq_core::{
    Backoff, DeadKind, DeadReason, Due, DurationExt, Ended, Ending, Flow, Headers, HistoryLimit,
    HistoryLimits, Job, JobId, JobKey, JobRef, JobState, JobView, Limits, NewJob, OnConflict,
    OnRunning, Priority, Queue, QueueCode, QueueFlow, QueueName, Rate, Target, Timestamp, queue,
};
// Handlers.
#[doc(inline)]
pub use dq_core::{
    DelayHandler, EscalateFrom, FromJob, Guard, HandlerFn, HandlerResult, IntoGuard, IntoOutcome,
    JobContext, JobError, JobResult, Middleware, Next, Outcome, Payload, RawHandler, RawPayload,
    Requirements, SharedState, State, async_trait,
};
// The runner, its events, and ingress.
#[doc(inline)]
pub use dq_core::{
    Event, FencingToken, Histogram, Ingress, Lease, Observer, PendingQueue, PendingReport,
    PendingVersion, RunDueReport, Runner, RunnerBuilder, RunnerInfo, RunnerQueue, Settled, Verdict,
    shutdown_signal,
};
// Errors.
#[doc(inline)]
pub use dq_core::{BoxError, Error, ErrorKind, Result};
// Clocks, randomness, tracing, and the memory store.
#[doc(inline)]
pub use dq_core::{
    Clock, Entropy, MemoryBackend, Propagator, SystemClock, TraceContext, VirtualClock,
};
#[doc(inline)]
pub use dq_macros::{QueueCode, delay_handler};
#[cfg(feature = "postgres")]
pub use dq_postgres as postgres;
#[cfg(feature = "rabbitmq")]
pub use dq_rabbit as rabbit;
#[cfg(feature = "redis")]
pub use dq_redis as redis;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub use dq_sqlite as sqlite;

#[doc(hidden)]
pub use dq_core::{__private, Registration, Registry, RunContext, StateMap};

/// Configuration: [`Config`](config::Config) for files and variables, and the settings of queues
/// and runners.
pub mod config {
    #[doc(inline)]
    pub use dq_core::config::{
        BackoffSettings, Config, Environment, LateAction, LatePolicy, LimitSettings, QueueSettings,
        RunnerSettings, ScheduleSettings, Secret, ServeSettings, TokenSettings, duration,
    };
}

/// Everything you need to add a store.
///
/// 1. Implement [`Backend`](backend::Backend); its documentation is the contract. Run the test
///    suite in `dq-testkit` against it. To wrap another store, implement [`Layer`](backend::Layer).
/// 2. Implement [`BackendConfig`](backend::BackendConfig) for its settings.
/// 3. Register its name and URL schemes with [`register_backend!`](backend::register_backend).
///
/// Applications then select it by URL or with `type = "…"` in `dq.toml`, as they do built-in
/// stores.
pub mod backend {
    #[doc(inline)]
    pub use dq_core::backend::*;
    #[doc(inline)]
    pub use dq_core::config::{
        BackendConfig, BackendRegistration, ConnectUrl, Environment, Migrated, Secret, authority,
        backend_from_url, host_and_port, known_backends,
    };
    #[doc(inline)]
    pub use dq_core::{MemoryBackend, async_trait, machine, register_backend};
}
