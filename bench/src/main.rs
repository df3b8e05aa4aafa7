//! The harness behind docs/benchmarks.md and docs/scale.md: `cargo xtask bench`, `scale` and
//! `peers`, or `cargo run --release -p dq-bench`.
//!
//! Each measurement runs in its own process, so that it has its own heap and CPU clock.

mod conditions;
mod history;
mod idle;
mod index;
mod lateness;
mod measure;
mod memory;
mod path;
mod peers;
mod plan;
mod probe;
mod rabbit;
mod redis;
mod scale;
mod sqlite;
mod store;
mod table;
mod workload;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::plan::{CHILD, Plan, Result, START, child_process, progress};
use crate::store::Store;
use crate::table::Figure;

const USAGE: &str = "\
Measures dq and prints a table of figures.

usage: dq-bench [--only NAME]… [--dir DIR] [--json FILE] [--quick]
       dq-bench scale --backend STORE --pending N [--queues N] [--dir DIR]
       dq-bench peers [--only PEER]… [--measure NAME]… [--quick] [--million]

  --only NAME   makes only this measurement, GROUP/NAME, or all of a GROUP
  --dir DIR     directory for the files of the run, on the disk to measure
                (default: target/dq-bench)
  --json FILE   also writes conditions and figures to a file
  --quick       uses small sizes: a test of the bench, not a measurement
  --help        prints this text

`scale` measures calls, lateness and memory with up to N pending jobs in sqlite, redis or rabbitmq, and writes
a table, a plot and the figures to DIR (default: target/scale). `peers` compares with other libraries.";

type Measure = fn(&Plan, &Store) -> Result<Vec<Figure>>;

const IN_PROCESS: &[&str] = &["memory", "sqlite"];
const REDIS: &[&str] = &["redis", "redisson", "redis-expiry"];
const RABBIT: &[&str] = &["rabbitmq"];

/// Names and stores. Not all are made of `redis-expiry`: only pending jobs have an expiring key.
const MEASUREMENTS: [(&str, &[&str], Measure); 28] = [
    ("index/life", &["memory"], index::measure),
    ("memory/pending", &["memory"], memory::pending),
    ("memory/runner", &["memory"], memory::runner),
    ("idle/calls", IN_PROCESS, idle::calls),
    ("sqlite/schedule", &["sqlite"], sqlite::schedule),
    ("sqlite/claims", &["sqlite"], sqlite::claims),
    ("history/settled", &["memory", "sqlite", "redis", "rabbitmq"], history::settlements),
    ("history/bytes", &["memory", "sqlite", "redis"], history::bytes),
    ("lateness/idle", IN_PROCESS, lateness::single),
    ("lateness/steady", IN_PROCESS, lateness::steady),
    ("lateness/at-once", IN_PROCESS, lateness::at_once),
    ("redis/schedule", REDIS, redis::schedule),
    ("redis/single", REDIS, redis::single),
    ("redis/path", REDIS, path::measure),
    ("redis/memory", REDIS, memory::pending),
    ("redis/transfer", &["redis", "redisson"], redis::transfer),
    ("redis/late", &["redis", "redisson"], lateness::steady),
    ("redis/at-once", &["redis", "redisson"], lateness::at_once),
    ("redis/idle", &["redis", "redisson"], idle::requests),
    ("rabbit/schedule", RABBIT, rabbit::schedule),
    ("rabbit/single", RABBIT, rabbit::single),
    ("rabbit/late", RABBIT, lateness::steady),
    ("rabbit/behind", RABBIT, lateness::single),
    ("rabbit/cancel", RABBIT, rabbit::cancel),
    ("rabbit/open", RABBIT, rabbit::open),
    ("rabbit/idle", RABBIT, idle::messages),
    ("rabbit/drain", RABBIT, rabbit::claims),
    ("rabbit/path", RABBIT, path::measure),
];

fn main() -> ExitCode {
    LazyLock::force(&START);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [CHILD, MEASURE, name, dir, size] => {
            measure(name, Plan { dir: dir.into(), quick: size == QUICK })
        }
        [CHILD, sqlite::VICTIM, url] => sqlite::victim(url),
        [CHILD, rabbit::READER, url] => rabbit::reader(url),
        [CHILD, peers::OWN_PROGRAM, ref rest @ ..] => peers::own_program(rest),
        ["scale", ref rest @ ..] => scale::run(rest),
        ["peers", ref rest @ ..] => peers::run(rest),
        _ => parse(&arguments).and_then(|options| bench(&options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dq-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Default)]
struct Options {
    only: Vec<String>,
    dir: Option<PathBuf>,
    json: Option<PathBuf>,
    quick: bool,
    help: bool,
}

fn parse(arguments: &[&str]) -> Result<Options> {
    use lexopt::prelude::{Long, Short, ValueExt};
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options::default();
    while let Some(option) = parser.next()? {
        match option {
            Long("only") => {
                let only = parser.value()?.string()?;
                if !MEASUREMENTS.iter().any(|(name, ..)| selects(&only, name)) {
                    let names = MEASUREMENTS.map(|(name, ..)| name).join(", ");
                    return Err(format!("unknown measurement {only:?}; there are: {names}").into());
                }
                options.only.push(only);
            }
            Long("dir") => options.dir = Some(parser.value()?.into()),
            Long("json") => options.json = Some(parser.value()?.into()),
            Long("quick") => options.quick = true,
            Long("help") | Short('h') => options.help = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(options)
}

fn selects(only: &str, name: &str) -> bool {
    only == name || only == group(name)
}

fn group(name: &str) -> &str {
    name.split_once('/').map_or(name, |(group, _)| group)
}

/// The child process that makes one measurement.
const MEASURE: &str = "measure";
const QUICK: &str = "quick";

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

fn bench(options: &Options) -> Result<()> {
    if options.help {
        println!("{USAGE}");
        return Ok(());
    }
    let base = options.dir.clone().unwrap_or_else(|| PathBuf::from("target/dq-bench"));
    fs::create_dir_all(&base)?;
    let mut conditions = Conditions::observe(&base, options.quick);
    println!("{conditions}");
    let mut figures = Vec::new();
    let is_selected =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| selects(only, name));
    for (name, ..) in MEASUREMENTS.iter().filter(|(name, ..)| is_selected(name)) {
        progress(format_args!("== {name}"));
        let dir = tempfile::tempdir_in(&base)?;
        let path = dir.path().to_str().ok_or("the directory's name is not UTF-8")?;
        let size = if options.quick { QUICK } else { "full" };
        let status = child_process(MEASURE, &[name, path, size]).status()?;
        if !status.success() {
            return Err(format!("{name} failed: {status}").into());
        }
        let measured = fs::read(dir.path().join(FIGURES))?;
        let measured: Measured = serde_json::from_slice(&measured)?;
        conditions.servers.extend(measured.servers);
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

/// The file in which a child process leaves what it has measured.
const FIGURES: &str = "figures.json";

fn measure(name: &str, plan: Plan) -> Result<()> {
    let found = MEASUREMENTS.iter().find(|(known, ..)| *known == name);
    let (_, stores, measure) = found.ok_or("unknown measurement")?;
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
