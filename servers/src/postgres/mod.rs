//! Private PostgreSQL servers.

mod installation;
mod options;
mod pgbouncer;
mod server;

pub(crate) use installation::install;
pub use options::{PostgresOptions, shared_postgres};
pub use pgbouncer::PgBouncer;
pub use server::Postgres;
