//! `cargo xtask test`: all checks that a change must pass before it is merged.

use std::time::Instant;

use crate::faults;
use crate::layers::layers;
use crate::programs::{self, SCOPE};
use crate::run::{Result, cargo, step};
use crate::soak;

/// Runs formatting, lints, layers, tests, short fault storms, a short soak and documentation. The
/// tests include the examples (`tests/examples`) and the documentation's code.
pub(crate) fn everything() -> Result {
    servers()?;
    step("formatting", &mut cargo(["fmt", "--all", "--check"]))?;
    let deny_warnings = ["--all-targets", "--", "-D", "warnings"];
    step("lints", cargo(["clippy"]).args(SCOPE).args(deny_warnings))?;
    layers()?;
    let tests = programs::run_all();
    let examples = step("code in the documentation", cargo(["test", "--doc"]).args(SCOPE));
    tests.and(examples)?;
    faults::selection()?;
    soak::selection()?;
    let mut docs = cargo(["doc", "--no-deps"]);
    step("documentation", docs.args(SCOPE).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs the tests with `filter` in their names.
pub(crate) fn filtered(filter: &str) -> Result {
    servers()?;
    step("tests", cargo(["test"]).args(SCOPE).arg(filter))
}

/// Installs the programs that the tests need.
pub(crate) fn servers() -> Result {
    println!("── servers: Redis, RabbitMQ, a browser, nginx, promtool, Java, Python");
    let start = Instant::now();
    dq_servers::install::everything()?;
    println!("── servers: ok, {:.1} s\n", start.elapsed().as_secs_f64());
    Ok(())
}
