//! Logs on stderr.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::args::{Command, ServeArgs};

/// Logs what `RUST_LOG` says. By default a server logs its work, and a command only warnings: its
/// result is on stdout, and its error is reported once.
pub(crate) fn init(command: &Command) {
    let default = match command {
        // Its jobs fail on purpose.
        Command::Serve(ServeArgs { demo: true, .. }) => "error,dq_core::runner=off",
        Command::Serve(_) => "info",
        // The audit warns of a change that failed, and the command reports that error itself. The
        // client of RabbitMQ takes the end of a connection for an error.
        _ => "warn,dq::audit=off,lapin=off",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // Fails if the program has a subscriber of its own, which is then the right one.
    let _ = subscriber.try_init();
}
