//! The harness behind every published figure: `cargo xtask bench`, or
//! `cargo run --release -p dq-bench`.
//!
//! Each group runs in a process of its own, so that none inherits another's heap or clock.

mod conditions;
mod idle;
mod index;
mod lateness;
mod lease;
mod measure;
mod memory;
mod probe;
mod rabbit;
mod raw;
mod redis;
mod sqlite;
mod table;
mod workload;

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::LazyLock;
use std::time::Instant;

use serde::Serialize;

use crate::conditions::Conditions;
use crate::table::Figure;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
Measures dq and prints a table of figures.

usage: dq-bench [--only GROUP]… [--dir DIR] [--json FILE] [--quick]

  --only GROUP  just this group: index, memory, idle, sqlite, lateness, redis,
                rabbit; of the last two also one measurement, GROUP/NAME
  --dir DIR     where the files of the run lie, on the disk to be measured
                (default: target/dq-bench)
  --json FILE   writes conditions and figures to a file, too
  --quick       small sizes, seconds in all: shows that it runs, not how fast
  --help        this text";

/// What a group needs to know.
#[derive(Debug)]
pub(crate) struct Plan {
    /// For files; empty at the start, and cleared away at the end.
    pub(crate) dir: PathBuf,
    pub(crate) quick: bool,
    /// The measurements of the group that are wanted; all if there is none.
    only: Vec<String>,
}

impl Plan {
    /// Whether a measurement of the group is wanted.
    pub(crate) fn asks_for(&self, measurement: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == measurement)
    }

    /// A size, by whether the run is to be quick.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// With the measurements that can be asked for one by one.
type Group = (&'static str, fn(&Plan) -> Result<Vec<Figure>>, fn() -> Vec<&'static str>);

const GROUPS: [Group; 7] = [
    ("index", index::run, Vec::new),
    ("memory", memory::run, Vec::new),
    ("idle", idle::run, Vec::new),
    ("sqlite", sqlite::run, Vec::new),
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
    /// Set in the processes that this program starts of itself: what to be, and its arguments.
    part: Option<(String, Vec<OsString>)>,
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
                    let (wanted, one) = split(&name);
                    let Some((_, _, names)) = GROUPS.iter().find(|(group, ..)| *group == wanted)
                    else {
                        return Err(format!("there is no group {wanted:?}").into());
                    };
                    let names = names();
                    if one.is_some_and(|one| !names.contains(&one)) {
                        let names = names.join(", ");
                        return Err(format!("there is no {name:?}, only: {names}").into());
                    }
                    options.only.push(name);
                }
                Long("dir") => options.dir = Some(parser.value()?.into()),
                Long("json") => options.json = Some(parser.value()?.into()),
                Long("quick") => options.quick = true,
                Long("help") | Short('h') => options.help = true,
                Long("part") => {
                    let part = parser.value()?.string()?;
                    options.part = Some((part, parser.raw_args()?.collect()));
                    break;
                }
                other => return Err(other.unexpected()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    LazyLock::force(&BEGAN);
    let options = match Options::parse() {
        Ok(options) if options.help => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(options) => options,
        Err(refusal) => {
            eprintln!("dq-bench: {refusal}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let ran = match &options.part {
        Some((part, args)) => run_part(part, args),
        None => run_all(&options),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dq-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Group and measurement of `GROUP/MEASUREMENT`, or the group alone.
fn split(only: &str) -> (&str, Option<&str>) {
    only.split_once('/').map_or((only, None), |(group, one)| (group, Some(one)))
}

#[derive(Serialize)]
struct Report<'a> {
    conditions: &'a Conditions,
    figures: &'a [Figure],
}

fn run_all(options: &Options) -> Result<()> {
    let base = options.dir.clone().unwrap_or_else(|| PathBuf::from("target/dq-bench"));
    fs::create_dir_all(&base)?;
    let asked =
        |group: &str| options.only.is_empty() || options.only.iter().any(|o| split(o).0 == group);
    let redis = asked("redis").then(redis::version).transpose()?;
    let rabbit = asked("rabbit").then(rabbit::version).transpose()?;
    let mut conditions = Conditions::observe(&base, options.quick, redis, rabbit);
    println!("{conditions}");
    let mut figures = Vec::new();
    for (name, ..) in GROUPS {
        if !asked(name) {
            continue;
        }
        progress(format_args!("== {name}"));
        let dir = tempfile::tempdir_in(&base)?;
        let out = dir.path().join("figures.json");
        let quick = if options.quick { "quick" } else { "full" };
        let mut child = part("group", [name.as_ref(), dir.path().as_ref(), quick.as_ref()]);
        if !options.only.iter().any(|only| only == name) {
            child.args(options.only.iter().filter_map(|only| {
                let (group, measurement) = split(only);
                measurement.filter(|_| group == name)
            }));
        }
        let status = child.status()?;
        if !status.success() {
            return Err(format!("the group {name} failed: {status}").into());
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

/// This program again, as one of its parts.
pub(crate) fn part<const N: usize>(name: &str, args: [&std::ffi::OsStr; N]) -> Command {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(this);
    command.arg("--part").arg(name).args(args);
    command
}

fn run_part(name: &str, args: &[OsString]) -> Result<()> {
    match (name, args) {
        ("group", [group, dir, quick, only @ ..]) => {
            let only = only.iter().map(|name| name.to_string_lossy().into_owned()).collect();
            let plan = Plan { dir: dir.into(), quick: quick == "quick", only };
            let (_, run, _) =
                GROUPS.iter().find(|(name, ..)| group == *name).ok_or("no such group")?;
            let figures = run(&plan)?;
            fs::write(plan.dir.join("figures.json"), serde_json::to_vec(&figures)?)?;
            Ok(())
        }
        (sqlite::VICTIM, [file]) => sqlite::victim(Path::new(file)),
        (rabbit::READER, [url]) => rabbit::reader(&url.to_string_lossy()),
        _ => Err("there is no such part".into()),
    }
}

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Says what is going on.
pub(crate) fn progress(what: std::fmt::Arguments<'_>) {
    eprintln!("[{:6.1} s] {what}", BEGAN.elapsed().as_secs_f64());
}
