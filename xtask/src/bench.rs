//! `cargo xtask bench`: the package `dq-bench`, built as users build for production.

use crate::run::{Done, cargo, step};

/// Passes its arguments on.
pub(crate) fn bench(arguments: &[&str]) -> Done {
    let run = ["run", "--release", "--package", "dq-bench", "--"];
    step("benchmarks", cargo(run).args(arguments))
}
