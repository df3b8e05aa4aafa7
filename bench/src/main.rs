//! The harness behind docs/benchmarks.md and docs/scale.md: `cargo xtask bench`, `scale` and
//! `peers`, or `cargo run --release -p dq-bench`.

mod conditions;
mod history;
mod idle;
mod lateness;
mod measure;
mod memory;
mod path;
mod peers;
mod plan;
mod probe;
mod rabbit;
mod redis;
mod scale;
mod sqlite;
mod store;
mod suite;
mod table;
mod workload;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::Parser;

use crate::plan::{CHILD, Result, START};

/// Measures dq and prints a table of figures.
#[derive(Debug, Parser)]
#[command(name = "dq-bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    suite: suite::Options,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Measures calls, lateness and memory with a growing number of pending jobs, and writes a
    /// table, a plot and the figures.
    Scale(scale::Options),
    /// Compares dq on Redis and on SQLite with other libraries and prints a table for each.
    ///
    /// The programs need Go 1.25, Node.js 20, Python 3 with venv, and a JDK 17 with Maven on the
    /// PATH; a peer whose tools are missing is named and left out.
    Peers(peers::Options),
}

fn main() -> ExitCode {
    LazyLock::force(&START);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [CHILD, task, ref rest @ ..] => run_child(task, rest),
        _ => run(&Arguments::parse()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dq-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        None => suite::run(&arguments.suite),
        Some(Command::Scale(options)) => scale::run(options),
        Some(Command::Peers(options)) => peers::run(options),
    }
}

/// Does the task of a child process that this program has started.
fn run_child(task: &str, arguments: &[&str]) -> Result<()> {
    match (task, arguments) {
        (suite::MEASURE, [name, dir, size]) => suite::measure(name, dir, size),
        (rabbit::READER, [url]) => rabbit::reader(url),
        (peers::OWN_PROGRAM, rest) => peers::own_program(rest),
        _ => Err(format!("a child process has no task {task:?}").into()),
    }
}
