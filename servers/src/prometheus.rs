//! Prometheus's tools.

use std::process::Command;

use crate::program::{PROMETHEUS, Program};

/// Returns a command for `promtool`, without arguments.
///
/// # Panics
/// If it is not installed.
#[must_use]
pub fn promtool() -> Command {
    Program::expect(PROMETHEUS, "promtool").command()
}
