//! `cargo xtask bench`: runs the package `dq-bench`, built in release mode.

use crate::run::{Done, cargo, step};

/// Passes its arguments on.
pub(crate) fn bench(arguments: &[&str]) -> Done {
    let run = ["run", "--release", "--package", "dq-bench", "--"];
    step("benchmarks", cargo(run).args(arguments))
}
