//! Parses the command line, runs the command, and returns an exit code.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use serde_json::json;

#[cfg(any(feature = "postgres", feature = "redis"))]
use crate::args::ImportCommand;
use crate::args::{Args, Command};
use crate::commands;
use crate::failure::{Failure, Result};
use crate::logging;
use crate::output::Output;
use crate::serve;
use crate::source;

/// Runs a command line and returns the exit code.
///
/// The first argument is the program name. Results go to stdout, errors and logs to stderr.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            // Fails if nobody reads; the exit code says enough.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    logging::init(&args.command);
    let mut output = Output::new(io::stdout().lock(), io::stderr(), args.target.json);
    let result = execute(&args, &mut output);
    let result = result.and_then(|()| output.flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.report() {
                // Print the results first. Stderr may be closed.
                let _ = output.flush();
                let _ = io::stderr().write_all(text.as_bytes());
            }
            ExitCode::from(failure.code())
        }
    }
}

fn execute(args: &Args, output: &mut Output<'_>) -> Result<()> {
    match &args.command {
        Command::Completions { shell } => commands::completions(*shell, output),
        Command::Health => {
            source::open_server(&args.target)?.ready()?;
            output.either(&json!({ "result": "healthy" }), || "healthy\n".to_owned())
        }
        Command::Migrate(migrate) => commands::migrate::run(&args.target, migrate, output),
        Command::Serve(serve) => serve::serve(&args.target, serve, output),
        #[cfg(any(feature = "postgres", feature = "redis"))]
        Command::Import(import) => {
            let store = source::open_store(&args.target)?;
            let result = match import {
                #[cfg(feature = "postgres")]
                ImportCommand::Postgres(query) => commands::copy::run(query, &store, output),
                #[cfg(feature = "redis")]
                ImportCommand::Redis(import) => commands::import::run(import, &store, output),
            };
            let closed = store.close();
            result.and_then(|()| closed.map_err(Failure::from))
        }
        command => {
            let source = source::open(&args.target)?;
            let result = commands::run(command, &source, output);
            let closed = source.close();
            // The command's failure comes first, because a failed close is its consequence.
            result.and_then(|()| closed.map_err(Failure::from))
        }
    }
}
