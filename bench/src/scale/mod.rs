//! `dq-bench scale`: calls, lateness and memory with a growing number of pending jobs.

mod measure;
mod report;

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::conditions::Conditions;
use crate::measure::{Plan, Result, block_on, progress};
use crate::store::Store;

use report::Report;

const LEAST: usize = 100;

const STORES: [&str; 4] = ["sqlite", "redis", "rabbitmq", "postgres"];

/// Measures calls, lateness and memory with up to N pending jobs. Writes a table, a plot and the
/// figures.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long = "backend", value_name = "STORE", value_parser = known_store)]
    store: &'static str,
    /// The pending jobs in the last step.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pending: usize,
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    queues: usize,
    /// The directory for the results.
    #[arg(long, default_value = "target/scale")]
    dir: PathBuf,
}

fn known_store(name: &str) -> std::result::Result<&'static str, String> {
    let store = STORES.into_iter().find(|store| *store == name);
    store.ok_or_else(|| format!("choose from {}", STORES.join(", ")))
}

fn at_least_one(text: &str) -> std::result::Result<usize, String> {
    let number: NonZeroUsize = text.parse().map_err(|error| format!("{error}"))?;
    Ok(number.get())
}

/// Returns `pending` and its 1000th, 100th and 10th part, if they are at least `LEAST`, ascending.
fn steps(pending: usize) -> Vec<usize> {
    let mut steps: Vec<usize> =
        [1_000, 100, 10].iter().map(|part| pending / part).filter(|at| *at >= LEAST).collect();
    steps.push(pending);
    steps
}

pub(crate) fn run(options: Options) -> Result<()> {
    let Options { store: name, pending, queues, dir } = options;
    fs::create_dir_all(&dir)?;
    let files = tempfile::tempdir_in(&dir)?;
    // An unoptimized build only tests the program.
    let plan = Plan { dir: files.path().to_owned(), quick: cfg!(debug_assertions) };
    let mut conditions = Conditions::observe(&dir, plan.quick);
    let store = Store::start(name, &plan.dir)?;
    println!("{conditions}");
    let server = store.version();
    let points = block_on(measure::points(&plan, &store, queues, &steps(pending)))?;
    drop(store);
    conditions.finish(server.into_iter().collect());
    let report = Report { store: name, queues, conditions, points };
    let mut stem = format!("{name}-{pending}");
    if queues > 1 {
        stem += &format!("-{queues}-queues");
    }
    let base = dir.join(stem);
    fs::write(base.with_extension("json"), serde_json::to_vec_pretty(&report)?)?;
    fs::write(base.with_extension("md"), report.markdown())?;
    fs::write(base.with_extension("svg"), report.plot())?;
    println!("{}", report.markdown());
    progress(format_args!("written to {}.json, .md and .svg", base.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_decimal_fractions_of_the_last() {
        assert_eq!(steps(1_000_000), [1_000, 10_000, 100_000, 1_000_000]);
        assert_eq!(steps(5_000), [500, 5_000]);
        assert_eq!(steps(7), [7]);
    }
}
