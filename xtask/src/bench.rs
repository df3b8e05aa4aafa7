//! `cargo xtask bench`: runs the package `dq-bench`, built in release mode.

use crate::run::{Result, cargo, step};

/// Passes its arguments on.
pub(crate) fn bench(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--"];
    step("benchmarks", cargo(run).args(arguments))
}
