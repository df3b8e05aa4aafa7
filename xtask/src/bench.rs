//! `cargo xtask bench`, `scale` and `peers`: run the `dq-bench` package in release mode and pass
//! arguments on.

use crate::run::{Result, cargo, step};

pub(crate) fn bench(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--"];
    step("benchmarks", cargo(run).args(arguments))
}

pub(crate) fn scale(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--", "scale"];
    step("scale", cargo(run).args(arguments))
}

pub(crate) fn peers(arguments: &[&str]) -> Result {
    let run = ["run", "--release", "--package", "dq-bench", "--bin", "peers", "--"];
    step("peers", cargo(run).args(arguments))
}
