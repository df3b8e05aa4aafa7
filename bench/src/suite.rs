//! `dq-bench` without a command: the measurements of single features, on each of their stores.
//!
//! Each measurement runs in its own process, so that it has its own heap and CPU clock.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::plan::{Plan, Result, child_process, progress};
use crate::store::Store;
use crate::table::{self, Figure};
use crate::{history, idle, lateness, memory, path, rabbit, redis, sqlite};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Makes only this measurement, GROUP/NAME, or all of a GROUP.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The directory for the files of the run, on the disk to measure.
    #[arg(long, default_value = "target/dq-bench")]
    dir: PathBuf,
    /// Also writes conditions and figures to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Uses small sizes: a test of the bench, not a measurement.
    #[arg(long)]
    quick: bool,
}

type Measure = fn(&Plan, &Store) -> Result<Vec<Figure>>;

const IN_PROCESS: &[&str] = &["memory", "sqlite"];
const REDIS: &[&str] = &["redis", "redisson", "redis-expiry"];
const RABBIT: &[&str] = &["rabbitmq"];

/// Names and stores. Only pending jobs cost `redis-expiry` more than `redis`, an expiring key each,
/// so it has fewer measurements.
const MEASUREMENTS: [(&str, &[&str], Measure); 21] = [
    ("memory/pending", &["memory"], memory::pending),
    ("memory/path", &["memory"], path::measure),
    ("idle/calls", &["memory", "sqlite", "redis", "redisson", "rabbitmq"], idle::calls),
    ("sqlite/schedule", &["sqlite"], sqlite::schedule),
    ("sqlite/claims", &["sqlite"], sqlite::claims),
    ("history/settled", &["memory", "sqlite", "redis", "rabbitmq"], history::settlements),
    ("lateness/idle", IN_PROCESS, lateness::single),
    ("lateness/steady", IN_PROCESS, lateness::steady),
    ("lateness/at-once", IN_PROCESS, lateness::at_once),
    ("redis/schedule", REDIS, redis::schedule),
    ("redis/single", REDIS, redis::single),
    ("redis/path", REDIS, path::measure),
    ("redis/memory", REDIS, memory::pending),
    ("redis/late", &["redis", "redisson"], lateness::steady),
    ("redis/at-once", &["redis", "redisson"], lateness::at_once),
    ("rabbit/schedule", RABBIT, rabbit::schedule),
    ("rabbit/single", RABBIT, rabbit::single),
    ("rabbit/late", RABBIT, lateness::steady),
    ("rabbit/behind", RABBIT, lateness::single),
    ("rabbit/open", RABBIT, rabbit::open),
    ("rabbit/path", RABBIT, path::measure),
];

/// The task of a child process that makes one measurement.
pub(crate) const MEASURE: &str = "measure";
/// The child's last argument; with any other, sizes are full.
const QUICK: &str = "quick";
/// The file in which a child leaves what it has measured.
const FIGURES: &str = "figures.json";

#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    servers: BTreeSet<String>,
    figures: Vec<Figure>,
}

#[derive(Serialize)]
struct Report<'a> {
    conditions: &'a Conditions,
    figures: &'a [(&'a str, Figure)],
}

/// Makes the chosen measurements and prints their table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let selected = select(&options.only)?;
    fs::create_dir_all(&options.dir)?;
    let mut conditions = Conditions::observe(&options.dir, options.quick);
    println!("{conditions}");
    let mut figures = Vec::new();
    for name in selected {
        progress(format_args!("== {name}"));
        let measured = measure_in_child(name, options)?;
        conditions.add_servers(measured.servers);
        figures.extend(measured.figures.into_iter().map(|figure| (group(name), figure)));
    }
    conditions.finish();
    let head = ["group", "figure", "value", "ratio", "target", "met"].map(str::to_owned);
    let row =
        |(group, figure): &(&str, Figure)| [vec![(*group).to_owned()], figure.cells()].concat();
    println!("\n{conditions}\n{}", table::markdown(&head, figures.iter().map(row)));
    if let Some(json) = &options.json {
        let report = Report { conditions: &conditions, figures: &figures };
        fs::write(json, serde_json::to_vec_pretty(&report)?)?;
    }
    Ok(())
}

/// The measurements with one of these names or groups; all if there are none.
fn select(only: &[String]) -> Result<Vec<&'static str>> {
    let names = MEASUREMENTS.map(|(name, ..)| name);
    let selects = |only: &String, name: &str| only == name || only == group(name);
    for only in only {
        if !names.iter().any(|name| selects(only, name)) {
            let names = names.join(", ");
            return Err(format!("unknown measurement {only:?}; there are: {names}").into());
        }
    }
    let is_selected = |name: &&str| only.is_empty() || only.iter().any(|only| selects(only, name));
    Ok(names.into_iter().filter(is_selected).collect())
}

/// `GROUP` of a name `GROUP/NAME`.
fn group(name: &str) -> &str {
    name.split_once('/').map_or(name, |(group, _)| group)
}

fn measure_in_child(name: &str, options: &Options) -> Result<Measured> {
    let dir = tempfile::tempdir_in(&options.dir)?;
    let path = dir.path().to_str().ok_or("the directory's name is not UTF-8")?;
    let size = if options.quick { QUICK } else { "full" };
    let status = child_process(MEASURE, &[name, path, size]).status()?;
    if !status.success() {
        return Err(format!("{name} failed: {status}").into());
    }
    Ok(serde_json::from_slice(&fs::read(dir.path().join(FIGURES))?)?)
}

/// Makes one measurement, in a child process.
pub(crate) fn measure(name: &str, dir: &str, size: &str) -> Result<()> {
    let found = MEASUREMENTS.iter().find(|(known, ..)| *known == name);
    let (_, stores, measure) = found.ok_or("unknown measurement")?;
    let plan = Plan { dir: dir.into(), quick: size == QUICK };
    let mut measured = Measured { servers: BTreeSet::new(), figures: Vec::new() };
    for store in *stores {
        let store = Store::start(store, &plan.dir)?;
        measured.servers.extend(store.version());
        for figure in measure(&plan, &store)? {
            progress(format_args!("{}", figure.cells().join("  ")));
            measured.figures.push(figure);
        }
    }
    fs::write(plan.dir.join(FIGURES), serde_json::to_vec(&measured)?)?;
    Ok(())
}
