//! The processes of `cargo xtask faults` and `cargo xtask soak`.
//!
//! - `URL LOG NAME produce` schedules, replaces, cancels and runs jobs until standard input ends or
//!   SIGINT arrives. It writes its trace to LOG.
//! - `URL LOG NAME drain` runs jobs until none is left, and writes its trace too.
//! - `URL LOG NAME soak` works like `produce`, with more jobs and no trace. LOG holds its queue's
//!   count of unfinished jobs, or an empty line while the store does not answer.
//! - `URL DIRECTORY judge` reads all traces and fails if they or the store break a promise.
//! - `proxy ADDRESS` forwards a port, which it prints, and obeys commands on standard input.
//!
//! `DQ_FAULTS_DEFECT=NAME` breaks a process's backend. With any value, `DQ_FAULTS_CLOCK` makes its
//! clock jump and `DQ_FAULTS_HISTORY` keeps a history.

mod clock;
mod defects;
mod judge;
mod limited;
mod proxy;
mod work;

use std::process::ExitCode;

use work::Mode;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["proxy", address] => proxy::run(address).await,
        [url, directory, "judge"] => judge::run(url, directory).await,
        [url, log, name, "produce"] => work::run(url, log, name, Mode::Produce).await,
        [url, log, name, "drain"] => work::run(url, log, name, Mode::Drain).await,
        [url, log, name, "soak"] => work::run(url, log, name, Mode::Soak).await,
        _ => Err("usage: see the source".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", arguments.last().unwrap_or(&""));
            ExitCode::FAILURE
        }
    }
}
