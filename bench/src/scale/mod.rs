//! `dq-bench scale`: calls, lateness and memory with a growing number of pending jobs.

mod measure;
mod plot;
mod report;

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;

use report::Report;

use crate::conditions::Conditions;
use crate::measure::block_on;
use crate::plan::{Plan, Result, progress};
use crate::store::Store;

/// The smallest number of pending jobs that is measured, unless the caller asks for fewer.
const LEAST_PENDING: usize = 100;

const STORES: [&str; 3] = ["sqlite", "redis", "rabbitmq"];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// sqlite, redis or rabbitmq.
    #[arg(long, value_name = "STORE", value_parser = store)]
    backend: &'static str,
    /// The largest number of pending jobs.
    #[arg(long, value_name = "N")]
    pending: NonZero<usize>,
    /// Spreads the jobs over this many queues, all served by one runner.
    #[arg(long, value_name = "N", default_value = "1")]
    queues: NonZero<usize>,
    /// The directory for the results and, during the run, the store's files.
    #[arg(long, default_value = "target/scale")]
    dir: PathBuf,
}

fn store(name: &str) -> std::result::Result<&'static str, String> {
    let known = STORES.into_iter().find(|known| *known == name);
    known.ok_or_else(|| format!("the stores are {}", STORES.join(", ")))
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { backend, pending, queues, dir } = options;
    let (pending, queues) = (pending.get(), queues.get());
    fs::create_dir_all(dir)?;
    let files = tempfile::tempdir_in(dir)?;
    // An unoptimized build only tests the program.
    let plan = Plan { dir: files.path().to_owned(), quick: cfg!(debug_assertions) };
    let mut conditions = Conditions::observe(dir, plan.quick);
    let store = Store::start(backend, &plan.dir)?;
    conditions.add_servers(store.version());
    println!("{conditions}");
    let points = block_on(measure::points(&plan, &store, queues, &pending_steps(pending)))?;
    drop(store);
    conditions.finish();

    let report = Report { store: backend, queues, conditions, points };
    let mut stem = format!("{backend}-{pending}");
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

/// `pending` and its 1000th, 100th and 10th part, ascending, if they are at least
/// [`LEAST_PENDING`].
fn pending_steps(pending: usize) -> Vec<usize> {
    let parts = [1_000, 100, 10].map(|divisor| pending / divisor);
    let measured = parts.into_iter().filter(|part| *part >= LEAST_PENDING);
    measured.chain([pending]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_decimal_fractions_of_the_last() {
        assert_eq!(pending_steps(1_000_000), [1_000, 10_000, 100_000, 1_000_000]);
        assert_eq!(pending_steps(5_000), [500, 5_000]);
        assert_eq!(pending_steps(7), [7]);
    }
}
