//! Logs on stderr.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::args::{Command, ServeArgs};

/// Logs as `RUST_LOG` says. By default, a server logs at `info`, and other commands log warnings:
/// their result is on stdout, and their error is reported once.
pub(crate) fn init(command: &Command) {
    let default = match command {
        // The demo's jobs fail on purpose.
        Command::Serve(ServeArgs { demo: true, .. }) => "error,dq_core::runner=off",
        Command::Serve(_) => "info",
        // The audit also logs failed changes, which the command already reports. The RabbitMQ
        // client logs a closed connection as an error.
        _ => "warn,dq::audit=off,lapin=off",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // Fails if the program has its own subscriber, which stays.
    let _ = subscriber.try_init();
}
