//! `cargo xtask test`: all checks that a change must pass before it is merged.

use std::thread;

use crate::faults;
use crate::layers::layers;
use crate::run::{Result, cargo, step};
use crate::servers::servers;
use crate::soak;

/// Threads of test programs, for each processor, unless `RUST_TEST_THREADS` is set: many tests
/// mostly wait for servers. Programs with a harness of their own have their own number.
const THREADS_PER_PROCESSOR: usize = 2;

/// Tests run with all features. Clippy gets the same ones, so that both share one build of SQLite.
const SCOPE: [&str; 2] = ["--workspace", "--all-features"];

/// Runs formatting, lints, layers, tests, short storms of faults, a short soak and documentation. `cargo test`
/// includes the examples, which `tests/examples` runs, and the code in the documentation.
pub(crate) fn everything() -> Result {
    servers()?;
    step("formatting", &mut cargo(["fmt", "--all", "--check"]))?;
    let deny_warnings = ["--all-targets", "--", "-D", "warnings"];
    step("lints", cargo(["clippy"]).args(SCOPE).args(deny_warnings))?;
    layers()?;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = (processors * THREADS_PER_PROCESSOR).to_string();
    let mut tests = cargo(["test"]);
    tests.args(SCOPE).arg("--no-fail-fast");
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        tests.env("RUST_TEST_THREADS", threads);
    }
    step("tests", &mut tests)?;
    faults::selection()?;
    soak::selection()?;
    let mut docs = cargo(["doc", "--no-deps"]);
    step("documentation", docs.args(SCOPE).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs the tests whose name contains the filter.
pub(crate) fn filtered(filter: &str) -> Result {
    servers()?;
    step("tests", cargo(["test"]).args(SCOPE).arg(filter))
}
