//! Delayed jobs in one SQLite file: the embedded, durable default backend for `dq`.
//!
//! ```no_run
//! # async fn example() -> dq_core::Result<()> {
//! use std::sync::Arc;
//!
//! use dq_core::config::Environment;
//! use dq_core::{Entropy, SystemClock};
//! use dq_sqlite::{SqliteBackend, SqliteConfig};
//!
//! let environment =
//!     Environment::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()));
//! let backend = SqliteBackend::open(&SqliteConfig::new("jobs.db"), &environment).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! - `Ok` means that the write is on disk, unless you set [`Durability::Relaxed`]. A single caller
//!   pays one sync per call; concurrent callers share one (group commit).
//! - Several processes on one host may share the file. It must be on a local disk.
//! - The file may be your application's own database: table names have a prefix, and
//!   [`SqliteBackend::schedule_in`] schedules inside your transaction. Other drivers and languages
//!   use [`SCHEDULE_SQL`].
//! - A long batch is stored in chunks of up to 1,000 jobs or 4 MiB. Each chunk is atomic, and other
//!   callers can write in between.
//!
//! # When a call fails
//! - The call has stored nothing, except that a batch keeps the chunks before the failed one.
//!   [`OutcomeUnknown`](dq_core::ErrorKind::OutcomeUnknown) is different: the commit itself failed,
//!   or the file was deleted, moved or replaced during the call, and only reading the file again
//!   tells whether the call took effect. Repeat the call with the same job ids. If it had taken
//!   effect, a repeated settlement is answered `LostLease`, and a claim's leases expire.
//! - After the open file was deleted, moved or replaced, all calls fail with `Unavailable` and
//!   store nothing until the file is back or you open the store again.
//! - Calls that share a transaction fail together, because SQLite may roll it back. A call that was
//!   rolled back because another one failed gets a retryable error, such as `Unavailable`.
//!
//! # Linking
//! A program can contain only one copy of SQLite. Cargo picks a [`rusqlite`] version, from 0.32.1
//! on, that suits other crates with SQLite (`sqlx`, `diesel`). SQLite before 3.51.3 has a bug that
//! can corrupt files written by two connections at once; [`check`](dq_core::Backend::check) reports
//! it.

mod backend;
mod check;
mod claim;
mod claim_plan;
mod config;
mod connection;
mod due_index;
mod end;
mod ended_jobs;
mod error;
#[cfg(test)]
mod fixture;
mod gate;
mod groups;
mod inspect;
mod listings;
mod maintenance;
mod operate;
mod queue_directory;
mod reader;
mod registry;
mod renew;
mod row;
mod schedule;
mod schedule_in;
mod schema;
mod settle;
mod shared;
mod statement;
mod statements;
mod store_file;
mod task;
mod write_tx;
mod writer;
mod writer_handle;

pub use backend::SqliteBackend;
pub use config::{Durability, SqliteConfig};
pub use rusqlite;
pub use schedule_in::SCHEDULE_SQL;
