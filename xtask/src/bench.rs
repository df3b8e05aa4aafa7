//! `cargo xtask bench`, `scale` and `peers`: run the `dq-bench` package in release mode and pass
//! arguments on.

use crate::run::{Result, cargo, step};

/// `command` is `bench`, or a command of the program.
pub(crate) fn run(command: &str, arguments: &[&str]) -> Result {
    let mut run = cargo(["run", "--release", "--package", "dq-bench", "--"]);
    run.args((command != "bench").then_some(command)).args(arguments);
    step(command, &mut run)
}
