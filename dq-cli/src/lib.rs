//! The program `dq`: a server with dashboard and HTTP API for services in any language, and
//! commands to inspect and change queues and jobs.
//!
//! The program knows this workspace's stores. To add a store from another crate, build your own:
//!
//! ```no_run
//! // use my_store as _; // a crate that is never named registers nothing
//! dq_cli::main!();
//! ```
//!
//! | Exit code | Meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed, or `dq check` found an error, or `dq import` left entries behind |
//! | 2 | an argument or the configuration is wrong, or `--yes` is missing; nothing changed |
//! | 3 | there is no such queue or job |
//! | 4 | the job's or queue's state forbids the command |
//! | 5 | the store or server is unreachable |
//!
//! After exit code 2 something may have changed in one case: the store refused a setting or
//! permission during a change. The error names it, so look before you repeat the command.

#[cfg(feature = "postgres")]
use dq_postgres as _;
#[cfg(feature = "rabbitmq")]
use dq_rabbit as _;
#[cfg(feature = "redis")]
use dq_redis as _;
#[cfg(feature = "sqlite")]
use dq_sqlite as _;

mod args;
mod commands;
mod demo;
mod failure;
mod forwards;
mod logging;
mod output;
mod parse;
mod run;
mod serve;
mod source;
mod stores;
mod text;

pub use run::run;

/// Defines the `main` function of the program `dq`.
#[macro_export]
macro_rules! main {
    () => {
        fn main() -> ::std::process::ExitCode {
            $crate::run(::std::env::args_os())
        }
    };
}
