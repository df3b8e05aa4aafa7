//! The harness behind docs/benchmarks.md (the tables down to History) and docs/scale.md: `cargo
//! xtask bench`, `cargo xtask scale` or `cargo run --release -p dq-bench`.
//!
//! Each group runs in its own process, so that it has its own heap and CPU clock.

mod conditions;
mod history;
mod idle;
mod index;
mod lateness;
mod lease;
mod measure;
mod memory;
mod plan;
mod probe;
mod rabbit;
mod raw;
mod redis;
mod scale;
mod sqlite;
mod table;
mod workload;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use serde::Serialize;

use crate::conditions::Conditions;
use crate::plan::{Plan, Result, START, child_process, progress};
use crate::table::Figure;

const USAGE: &str = "\
Measures dq and prints a table of figures.

usage: dq-bench [--only GROUP]… [--dir DIR] [--json FILE] [--quick]
       dq-bench scale --backend STORE --pending N [--queues N] [--dir DIR]

  --only GROUP  runs only this group: index, memory, idle, sqlite, history, lateness,
                redis, rabbit; or one measurement of redis or rabbit: GROUP/NAME
  --dir DIR     directory for the files of the run, on the disk to measure
                (default: target/dq-bench)
  --json FILE   also writes conditions and figures to a file
  --quick       uses small sizes: a test of the bench, not a measurement
  --help        prints this text

`scale` measures calls, lateness and memory with up to N pending jobs in sqlite, redis or rabbitmq, and writes
a table, a plot and the figures to DIR (default: target/scale).";

type Group = (&'static str, fn(&Plan) -> Result<Vec<Figure>>, fn() -> Vec<&'static str>);

const GROUPS: [Group; 8] = [
    ("index", index::run, Vec::new),
    ("memory", memory::run, Vec::new),
    ("idle", idle::run, Vec::new),
    ("sqlite", sqlite::run, Vec::new),
    ("history", history::run, Vec::new),
    ("lateness", lateness::run, Vec::new),
    ("redis", redis::run, redis::names),
    ("rabbit", rabbit::run, rabbit::names),
];

#[derive(Debug, Default)]
struct Options {
    only: Vec<String>,
    dir: Option<PathBuf>,
    json: Option<PathBuf>,
    quick: bool,
    help: bool,
    /// In a child process: its task and arguments.
    child: Option<(String, Vec<OsString>)>,
}

impl Options {
    fn parse() -> std::result::Result<Self, lexopt::Error> {
        use lexopt::prelude::{Long, Short, ValueExt};
        let mut parser = lexopt::Parser::from_env();
        let mut options = Self::default();
        while let Some(option) = parser.next()? {
            match option {
                Long("only") => {
                    let name = parser.value()?.string()?;
                    let (selected, measurement) = split(&name);
                    let Some((_, _, names)) = GROUPS.iter().find(|(group, ..)| *group == selected)
                    else {
                        return Err(format!("unknown group {selected:?}").into());
                    };
                    let names = names();
                    if measurement.is_some_and(|name| !names.contains(&name)) {
                        let names = names.join(", ");
                        return Err(format!(
                            "unknown measurement {name:?}; the group has: {names}"
                        )
                        .into());
                    }
                    options.only.push(name);
                }
                Long("dir") => options.dir = Some(parser.value()?.into()),
                Long("json") => options.json = Some(parser.value()?.into()),
                Long("quick") => options.quick = true,
                Long("help") | Short('h') => options.help = true,
                Long("child") => {
                    let task = parser.value()?.string()?;
                    options.child = Some((task, parser.raw_args()?.collect()));
                    break;
                }
                other => return Err(other.unexpected()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    LazyLock::force(&START);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "scale") {
        return exit(scale::run(arguments));
    }
    let options = match Options::parse() {
        Ok(options) if options.help => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(options) => options,
        Err(error) => {
            eprintln!("dq-bench: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = match &options.child {
        Some((task, args)) => run_child(task, args),
        None => run_all(&options),
    };
    exit(result)
}

fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dq-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn split(only: &str) -> (&str, Option<&str>) {
    only.split_once('/').map_or((only, None), |(group, name)| (group, Some(name)))
}

#[derive(Serialize)]
struct Report<'a> {
    conditions: &'a Conditions,
    figures: &'a [Figure],
}

fn run_all(options: &Options) -> Result<()> {
    let base = options.dir.clone().unwrap_or_else(|| PathBuf::from("target/dq-bench"));
    fs::create_dir_all(&base)?;
    let selected = |group: &str| {
        options.only.is_empty() || options.only.iter().any(|only| split(only).0 == group)
    };
    // `history` measures every store.
    let uses = |group| selected(group) || selected("history");
    let redis = uses("redis").then(redis::version).transpose()?;
    let rabbit = uses("rabbit").then(rabbit::version).transpose()?;
    let mut conditions = Conditions::observe(&base, options.quick, redis, rabbit);
    println!("{conditions}");
    let mut figures = Vec::new();
    for (name, ..) in GROUPS {
        if !selected(name) {
            continue;
        }
        progress(format_args!("== {name}"));
        let dir = tempfile::tempdir_in(&base)?;
        let out = dir.path().join("figures.json");
        let quick = if options.quick { "quick" } else { "full" };
        let mut child =
            child_process("group", [name.as_ref(), dir.path().as_ref(), quick.as_ref()]);
        // `--only GROUP` selects all its measurements, even if others are named too.
        if !options.only.iter().any(|only| only == name) {
            child.args(options.only.iter().filter_map(|only| {
                let (group, measurement) = split(only);
                measurement.filter(|_| group == name)
            }));
        }
        let status = child.status()?;
        if !status.success() {
            return Err(format!("group {name} failed: {status}").into());
        }
        let measured: Vec<Figure> = serde_json::from_slice(&fs::read(out)?)?;
        figures.extend(measured.into_iter().map(|figure| Figure { group: name.into(), ..figure }));
    }
    conditions.finish();
    println!("\n{conditions}\n{}", table::markdown(&figures));
    if let Some(json) = &options.json {
        let report = Report { conditions: &conditions, figures: &figures };
        fs::write(json, serde_json::to_vec_pretty(&report)?)?;
    }
    Ok(())
}

fn run_child(task: &str, args: &[OsString]) -> Result<()> {
    match (task, args) {
        ("group", [group, dir, quick, only @ ..]) => {
            let only = only.iter().map(|name| name.to_string_lossy().into_owned()).collect();
            let plan = Plan { dir: dir.into(), quick: quick == "quick", only };
            let (_, run, _) =
                GROUPS.iter().find(|(name, ..)| group == *name).ok_or("unknown group")?;
            let figures = run(&plan)?;
            fs::write(plan.dir.join("figures.json"), serde_json::to_vec(&figures)?)?;
            Ok(())
        }
        (sqlite::VICTIM, [file]) => sqlite::victim(Path::new(file)),
        (rabbit::READER, [url]) => rabbit::reader(&url.to_string_lossy()),
        _ => Err("unknown task of a child process".into()),
    }
}
