//! The tools of Prometheus. No server is started.

use std::process::Command;

use crate::program::{PROMETHEUS, Program};

/// A command that runs `promtool`, without arguments.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn promtool() -> Command {
    Program::expect(PROMETHEUS, "promtool").command()
}
