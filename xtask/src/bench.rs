//! `cargo xtask bench`, `cargo xtask scale` and `cargo xtask peers`: the programs of the package
//! `dq-bench`, built in release mode.

use crate::run::{Result, cargo, step};

/// Passes its arguments on.
pub(crate) fn bench(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--"];
    step("benchmarks", cargo(run).args(arguments))
}

/// Measures with many pending jobs. Passes its arguments on.
pub(crate) fn scale(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--", "scale"];
    step("scale", cargo(run).args(arguments))
}

/// Compares with other libraries. Passes its arguments on.
pub(crate) fn peers(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--bin", "peers", "--"];
    step("peers", cargo(run).args(arguments))
}
