//! The program `dq`: a server with dashboard and HTTP API for services in any language, and commands
//! to see and change queues and jobs.
//!
//! The program knows the stores of this workspace. With a store of another crate, build your own:
//!
//! ```no_run
//! // use my_store as _; // a crate that is never named registers nothing
//! dq_cli::main!();
//! ```
//!
//! | Exit code | Meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed, or `dq check` has found an error, or `dq import` has left entries behind |
//! | 2 | an argument or the configuration is wrong, or `--yes` is missing. Nothing was changed, unless the store has refused a setting or a right in the middle of a change: the error names it, and you look before you repeat it |
//! | 3 | there is no such queue or job |
//! | 4 | the state of the job or the queue forbids it |
//! | 5 | the store or the server cannot be reached |

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
mod run;
mod serve;
mod source;
mod stores;
mod text;

pub use run::run;

/// Defines `main` as that of the program `dq`.
#[macro_export]
macro_rules! main {
    () => {
        fn main() -> ::std::process::ExitCode {
            $crate::run(::std::env::args_os())
        }
    };
}
