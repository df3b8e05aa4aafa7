//! Delayed jobs in PostgreSQL: the backend for `dq` where your data already is.
//!
//! ```no_run
//! # async fn example() -> dq_core::Result<()> {
//! use dq_core::config::Environment;
//! use dq_postgres::{PostgresBackend, PostgresConfig};
//!
//! let config = PostgresConfig::new("postgres://localhost/shop");
//! let backend = PostgresBackend::connect(&config, &Environment::default()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! - `Ok` means that the write is committed, as durable as the server's `synchronous_commit` makes
//!   it.
//! - All state is in one schema, `dq` by default, with tables and functions. Each schema is a store
//!   of its own.
//! - Unless `prepare` is set, statements are not prepared and need no session, so poolers in
//!   transaction mode can be in between. Only the listener for wake-up hints needs a session;
//!   without it, runners find jobs by their claims, once a second.
//! - Claims take as long under an old snapshot (a report, a backup) as without one. With
//!   `max_running`, they read again what has ended within a lease's time.
//! - Claims of a queue with limits wait for each other, but not for claims of other queues.
//! - A long batch is stored in chunks of up to 1,000 jobs or 4 MiB. Each chunk is atomic.
//!
//! # When a call fails
//! The call has stored nothing, except that a batch keeps the chunks before the failed one. After
//! [`OutcomeUnknown`](dq_core::ErrorKind::OutcomeUnknown) the reply was lost: repeat the call with
//! the same job ids.

mod backend;
mod bounds;
mod check;
mod claim;
mod config;
mod connect;
mod error;
mod flow;
mod import;
mod inspect;
mod listener;
mod maintain;
mod operate;
mod params;
mod registry;
mod renew;
mod row;
mod schedule;
mod schema;
mod settle;
mod store;

pub use backend::PostgresBackend;
pub use config::PostgresConfig;
pub use import::{QueryRow, QueryRows, QuerySource};
