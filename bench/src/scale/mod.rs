//! `dq-bench scale`: calls, lateness and memory with a growing number of pending jobs.

mod measure;
mod plot;
mod report;

use std::fs;
use std::path::PathBuf;

use crate::conditions::Conditions;
use crate::measure::block_on;
use crate::plan::{Plan, Result, progress};
use crate::store::Store;

use report::Report;

/// The smallest step, unless the caller asks for fewer jobs.
const LEAST: usize = 100;

const STORES: [&str; 3] = ["sqlite", "redis", "rabbitmq"];

#[derive(Debug)]
struct Options {
    store: &'static str,
    pending: usize,
    queues: usize,
    dir: PathBuf,
}

fn parse(arguments: &[&str]) -> Result<Options> {
    use lexopt::prelude::{Long, ValueExt};
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut store, mut pending, mut queues) = (None, 0, 1);
    let mut dir = PathBuf::from("target/scale");
    while let Some(argument) = parser.next()? {
        match argument {
            Long("backend") => {
                let name = parser.value()?.string()?;
                store = STORES.into_iter().find(|store| *store == name);
            }
            Long("pending") => pending = parser.value()?.parse()?,
            Long("queues") => queues = parser.value()?.parse()?,
            Long("dir") => dir = parser.value()?.into(),
            other => return Err(other.unexpected().into()),
        }
    }
    let store = store.ok_or_else(|| format!("scale: --backend is one of {}", STORES.join(", ")))?;
    if pending == 0 || queues == 0 {
        return Err("scale: --pending is missing, or a number is 0".into());
    }
    Ok(Options { store, pending, queues, dir })
}

/// Returns `pending` and its 1000th, 100th and 10th part, if they are at least `LEAST`, ascending.
fn steps(pending: usize) -> Vec<usize> {
    let mut steps: Vec<usize> =
        [1_000, 100, 10].iter().map(|part| pending / part).filter(|at| *at >= LEAST).collect();
    steps.push(pending);
    steps
}

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let Options { store: name, pending, queues, dir } = parse(arguments)?;
    fs::create_dir_all(&dir)?;
    let files = tempfile::tempdir_in(&dir)?;
    // An unoptimized build only tests the program.
    let plan = Plan { dir: files.path().to_owned(), quick: cfg!(debug_assertions) };
    let mut conditions = Conditions::observe(&dir, plan.quick);
    let store = Store::start(name, &plan.dir)?;
    conditions.servers.extend(store.version());
    println!("{conditions}");
    let points = block_on(measure::points(&plan, &store, queues, &steps(pending)))?;
    drop(store);
    conditions.finish();
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
