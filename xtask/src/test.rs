//! `cargo xtask test`: all checks that a change must pass before it is merged.

use std::time::Instant;

use crate::layers::layers;
use crate::programs::{self, SCOPE};
use crate::run::{Result, Task, cargo, in_lanes, step};
use crate::{faults, soak};

/// Runs all checks. Downloads run beside the lints. Storms, documentation and soak run beside the
/// tests, which mostly wait. The soak comes last, when the machine is least busy, because late jobs
/// look like growth.
pub(crate) fn everything() -> Result {
    let first: [Task<'_>; 2] = [&servers, &lints];
    in_lanes(first.len(), &first, |task| task())?;
    let programs = programs::build()?;
    let rest: [Task<'_>; 2] = [&|| programs::run(&programs), &beside_the_tests];
    in_lanes(rest.len(), &rest, |task| task())
}

fn lints() -> Result {
    step("formatting", &mut cargo(["fmt", "--all", "--check"]))?;
    let deny_warnings = ["--all-targets", "--", "-D", "warnings"];
    step("lints", cargo(["clippy"]).args(SCOPE).args(deny_warnings))?;
    layers()
}

fn beside_the_tests() -> Result {
    let examples = || step("code in the documentation", cargo(["test", "--doc"]).args(SCOPE));
    let tasks: [Task<'_>; 4] =
        [&faults::selection, &examples, &|| documentation(&[]), &soak::selection];
    in_lanes(1, &tasks, |task| task())
}

/// Builds the API's documentation in `target/doc`, except that of some crates.
pub(crate) fn documentation(excluded: &[&str]) -> Result {
    let mut docs = cargo(["doc", "--no-deps"]);
    docs.args(excluded.iter().flat_map(|name| ["--exclude", name]));
    step("documentation", docs.args(SCOPE).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs the tests with `filter` in their names.
pub(crate) fn filtered(filter: &str) -> Result {
    servers()?;
    step("tests", cargo(["test"]).args(SCOPE).arg(filter))
}

pub(crate) fn servers() -> Result {
    println!(
        "── servers: Redis, RabbitMQ, PostgreSQL, pgbouncer, a browser, nginx, promtool, Java, \
         Python, Node.js"
    );
    let start = Instant::now();
    dq_servers::install::everything()?;
    println!("── servers: ok, {:.1} s\n", start.elapsed().as_secs_f64());
    Ok(())
}
