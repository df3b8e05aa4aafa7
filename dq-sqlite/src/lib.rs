//! Delayed jobs in one SQLite file: the embedded, durable default backend of `dq`.
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
//! - `Ok` means that the write is on the disk, unless [`Durability::Relaxed`] is set. A single
//!   caller pays one sync per call; concurrent callers share one (group commit).
//! - Several processes of one host may use the file at once. The file must be on a local disk.
//! - The file may be the application's own database: the backend's tables have names with a prefix,
//!   and [`SqliteBackend::schedule_in`] schedules inside the application's transaction. Other
//!   drivers and languages do the same with [`SCHEDULE_SQL`].
//! - A long batch is stored in chunks: a chunk ends after 1,000 jobs, or once its jobs add up to 4
//!   MiB. Each chunk is atomic, and other callers can write between two chunks.
//!
//! # When a call fails
//! - Nothing of the call has been stored, except that a batch of several chunks keeps the chunks
//!   before the one that failed. The exception is
//!   [`OutcomeUnknown`](dq_core::ErrorKind::OutcomeUnknown): the commit itself failed, or the file was
//!   deleted, moved or replaced during the call, and whether it took effect is known only when the
//!   file is read again. Repeat the call with the same
//!   job ids. A repeated settlement that had taken effect is answered `Stale`, and leases of a
//!   claim that had taken effect lapse.
//! - After the file was deleted, moved or replaced while it was open, all calls fail with
//!   `Unavailable` and nothing is stored, until the file is back at its path or the store is opened
//!   again.
//! - Calls that share a transaction fail together, since SQLite may roll back the whole
//!   transaction. Calls that were rolled back because of another call get a retryable error, for
//!   example `Unavailable`.
//!
//! # Linking
//! A program can contain only one copy of SQLite. Cargo picks a version of [`rusqlite`], from
//! 0.32.1 on, that is compatible with the other crates that link SQLite (`sqlx`, `diesel`). SQLite
//! before 3.51.3 has a bug that can corrupt files written by two connections at once;
//! [`check`](dq_core::Backend::check) reports it if such a version is linked.

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
mod file_probe;
mod inspect;
mod listings;
mod maintenance;
mod operate;
mod other_writers;
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
