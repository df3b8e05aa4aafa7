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
//!     Environment { clock: Arc::new(SystemClock), entropy: Arc::new(Entropy::from_os()) };
//! let backend = SqliteBackend::open(&SqliteConfig::new("jobs.db"), &environment).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - `Ok` means on the disk. One caller pays one sync per call; many callers share it.
//! - Several processes of one host may use the file at once. The file must be on a local disk.
//! - The file may be the application's own: the tables live beside its tables, under a prefix, and
//!   [`SqliteBackend::schedule_in`] schedules inside the application's transaction. Other drivers
//!   and languages do the same with [`SCHEDULE_SQL`].
//! - A bulk of more than 1,000 jobs is stored in chunks of 1,000, each atomic, with other callers
//!   let in between.
//!
//! # When a call fails
//! - Nothing of the call, or of the chunk of a bulk, has been stored. The exception is
//!   [`OutcomeUnknown`](dq_core::ErrorKind::OutcomeUnknown): the commit itself failed, and whether it
//!   reached the disk shows only when the file is read again. Repeat the call with the same job ids;
//!   a settlement that had taken effect is then answered `Stale`, and leases of a claim that had
//!   lapse by themselves.
//! - Calls that share a transaction share its failure, since SQLite may undo the whole. Whoever only
//!   sat beside a call that failed gets an error that is worth a repetition, such as `Unavailable`.
//!
//! # Linking
//! One program can hold only one copy of SQLite. Cargo picks a version of [`rusqlite`] that agrees
//! with whatever else links it (`sqlx`, `diesel`), from 0.32.1 on. SQLite before 3.51.3 has a flaw
//! that can damage files written by two connections at once;
//! [`check`](dq_core::Backend::check) says so if such a version is linked.

mod backend;
mod browse;
mod check;
mod claim;
mod config;
mod connection;
mod error;
mod granted;
mod maintenance;
mod operate;
mod reader;
mod row;
mod schedule;
mod schema;
mod settle;
mod shared;
mod sql;
mod submit;
mod transaction;
mod tx;
mod wake;
mod writer;

pub use backend::SqliteBackend;
pub use config::{Durability, SqliteConfig};
pub use rusqlite;
pub use transaction::SCHEDULE_SQL;
