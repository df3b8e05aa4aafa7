//! The harness behind docs/benchmarks.md and docs/scale.md: `cargo xtask bench`, `scale`,
//! `horizon` and `peers`, or `cargo run --release -p dq-bench`.
//!
//! Each measurement runs in its own process, so that it has its own heap and CPU clock.

mod conditions;
mod flow;
mod history;
mod horizon;
mod idle;
mod index;
mod lateness;
mod measure;
mod memory;
mod path;
mod peers;
mod plot;
mod postgres;
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

use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::measure::{CHILD, Plan, Result, START, child_process, progress};
use crate::store::Store;
use crate::table::Figure;

/// Measures dq and prints a table of figures.
#[derive(Debug, Parser)]
#[command(name = "dq-bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    bench: Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    Scale(scale::Options),
    Peers(peers::Options),
    Horizon(horizon::Options),
}

#[derive(Debug, Args)]
struct Options {
    /// Makes only this measurement, GROUP/NAME, or all of a GROUP.
    #[arg(long, value_name = "NAME", value_parser = known_measurement)]
    only: Vec<String>,
    /// The directory for the files of the run, on the disk to measure.
    #[arg(long, default_value = "target/dq-bench")]
    dir: PathBuf,
    /// Also writes conditions and figures to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also writes them as a page of the documentation, with a table for each group.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Uses small sizes: a test of the bench, not a measurement.
    #[arg(long)]
    quick: bool,
}

fn known_measurement(only: &str) -> std::result::Result<String, String> {
    if MEASUREMENTS.iter().any(|(name, ..)| selects(only, name)) {
        return Ok(only.to_owned());
    }
    Err(format!("there are: {}", MEASUREMENTS.map(|(name, ..)| name).join(", ")))
}

type Measure = fn(&Plan, &Store) -> Result<Vec<Figure>>;

const IN_PROCESS: &[&str] = &["memory", "sqlite"];
const REDIS: &[&str] = &["redis", "redisson", "redis-expiry"];
const RABBIT: &[&str] = &["rabbitmq"];
const POSTGRES: &[&str] = &["postgres"];
const LIMITED: &[&str] = &["sqlite", "redis", "postgres", "rabbitmq"];

/// Names and stores. Not all are made of `redis-expiry`: only pending jobs have an expiring key.
const MEASUREMENTS: [(&str, &[&str], Measure); 42] = [
    ("index/life", &["memory"], index::measure),
    ("memory/pending", &["memory"], memory::pending),
    ("memory/runner", &["memory"], memory::runner),
    ("idle/calls", IN_PROCESS, idle::calls),
    ("sqlite/schedule", &["sqlite"], sqlite::schedule),
    ("sqlite/claims", &["sqlite"], sqlite::claims),
    (
        "history/settled",
        &["memory", "sqlite", "redis", "rabbitmq", "postgres"],
        history::settlements,
    ),
    ("history/bytes", &["memory", "sqlite", "redis", "postgres"], history::bytes),
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
    ("postgres/schedule", POSTGRES, postgres::schedule),
    ("postgres/single", POSTGRES, postgres::single),
    ("postgres/producers", POSTGRES, postgres::producers),
    ("postgres/claims", POSTGRES, postgres::claims),
    ("postgres/path", POSTGRES, path::measure),
    ("postgres/memory", POSTGRES, memory::pending),
    ("postgres/log", POSTGRES, postgres::log),
    ("postgres/late", POSTGRES, lateness::steady),
    ("postgres/alone", POSTGRES, lateness::single),
    ("postgres/at-once", POSTGRES, lateness::at_once),
    ("postgres/idle", POSTGRES, idle::calls),
    ("flow/costs", LIMITED, flow::costs),
    ("flow/slot", LIMITED, flow::freed_slot),
    ("flow/idle", LIMITED, idle::blocked),
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
        _ => {
            let Arguments { command, bench: options } = Arguments::parse();
            match command {
                Some(Command::Scale(options)) => scale::run(options),
                Some(Command::Peers(options)) => peers::run(&options),
                Some(Command::Horizon(options)) => horizon::run(&options),
                None => bench(&options),
            }
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dq-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn selects(only: &str, name: &str) -> bool {
    only == name || only == group(name)
}

fn group(name: &str) -> &str {
    name.split_once('/').map_or(name, |(group, _)| group)
}

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
    fs::create_dir_all(&options.dir)?;
    let mut conditions = Conditions::observe(&options.dir, options.quick);
    println!("{conditions}");
    let (mut figures, mut servers) = (Vec::new(), BTreeSet::new());
    let is_selected =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| selects(only, name));
    for (name, ..) in MEASUREMENTS.iter().filter(|(name, ..)| is_selected(name)) {
        progress(format_args!("== {name}"));
        let dir = tempfile::tempdir_in(&options.dir)?;
        let path = dir.path().to_str().ok_or("the directory's name is not UTF-8")?;
        let size = if options.quick { QUICK } else { "full" };
        let status = child_process(MEASURE, &[name, path, size]).status()?;
        if !status.success() {
            return Err(format!("{name} failed: {status}").into());
        }
        let measured = fs::read(dir.path().join(FIGURES))?;
        let measured: Measured = serde_json::from_slice(&measured)?;
        servers.extend(measured.servers);
        figures.extend(measured.figures.into_iter().map(|figure| (group(name), figure)));
    }
    conditions.finish(servers);
    let head = ["group", "figure", "value", "ratio", "target", "met"].map(str::to_owned);
    let row =
        |(group, figure): &(&str, Figure)| [vec![(*group).to_owned()], figure.cells()].concat();
    println!("\n{conditions}\n{}", table::markdown(&head, figures.iter().map(row)));
    if let Some(json) = &options.json {
        let report = Report { conditions: &conditions, figures: &figures };
        fs::write(json, serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(path) = &options.page {
        fs::write(path, page(&conditions, &figures))?;
    }
    Ok(())
}

fn page(conditions: &Conditions, figures: &[(&str, Figure)]) -> String {
    const HEAD: &str = "# Figures\n\n\
        One run of `cargo xtask bench --page docs/figures.md`, which wrote this page. \
        [Benchmarks](benchmarks.md) says what the references and targets are.\n";
    let head = ["", "value", "ratio", "target", "met"].map(str::to_owned);
    let mut text = format!("{HEAD}\n{}", conditions.to_markdown());
    for of_group in figures.chunk_by(|(a, _), (b, _)| a == b) {
        let rows = of_group.iter().map(|(_, figure)| figure.cells());
        text += &format!("\n## {}\n\n{}", of_group[0].0, table::markdown(&head, rows));
    }
    text
}

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_page_has_a_table_for_each_group() {
        let figure = |name| Figure::new(name, 1.0, "ms");
        let figures = [("a", figure("x")), ("a", figure("y")), ("b", figure("z"))];
        let page = page(&Conditions::observe(Path::new("."), true), &figures);
        assert_eq!(page.matches("\n## ").count(), 2, "{page}");
        assert!(page.contains("| QUICK | ") && page.contains("| y | 1.00 ms |"), "{page}");
    }
}
