//! Compares delayed jobs in dq and other libraries on one private Redis server and on files: `cargo
//! xtask peers`.

mod measure;
mod own;
mod peer;
mod place;
mod table;
mod worker;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dq_servers::install;

use crate::measure::{MEASUREMENTS, Sizes};
use crate::peer::Peer;
use crate::place::{Kind, Place};
use crate::table::Table;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const USAGE: &str = "\
Compares dq on Redis and on SQLite with other libraries and prints a table for each.

usage: peers [--only PEER]… [--measure NAME]… [--quick] [--million]

  --only PEER     measures only these: dq, asynq, bullmq, celery, redisson, apalis; dq-sqlite, apalis-sqlite
  --measure NAME  makes only these measurements: bulk, single, no-op, late, idle, kill
  --quick         uses small sizes: a test of the programs, not a measurement
  --million       lateness beside a million pending jobs, too
  --help          prints this text

The programs need Go 1.25, Node.js 20, Python 3 with venv, and a JDK 17 with Maven on the PATH; a peer whose
tools are missing is named and left out.";

#[derive(Debug, Default)]
struct Options {
    only: Vec<String>,
    measurements: Vec<String>,
    quick: bool,
    million: bool,
}

fn parse(arguments: Vec<String>) -> Result<Option<Options>> {
    use lexopt::prelude::{Long, ValueExt};
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("only") => options.only.push(parser.value()?.string()?),
            Long("measure") => options.measurements.push(parser.value()?.string()?),
            Long("quick") => options.quick = true,
            Long("million") => options.million = true,
            Long("help") => return Ok(None),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let names = |known: Vec<&str>, given: &[String], what: &str| match given
        .iter()
        .find(|name| !known.contains(&name.as_str()))
    {
        Some(name) => Err(format!("there is no {what} {name:?}: choose from {known:?}")),
        None => Ok(()),
    };
    names(peer::PEERS.map(|known| known.0).to_vec(), &options.only, "peer")?;
    names(MEASUREMENTS.map(|known| known.0).to_vec(), &options.measurements, "measurement")?;
    Ok(Some(options))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == peer::OWN_PROGRAM => own::run(rest),
        _ => parse(arguments).and_then(|options| match options {
            Some(options) => compare(&options),
            None => {
                println!("{USAGE}");
                Ok(())
            }
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<()> {
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    install::redis()?;
    let redis = build(Kind::Redis, &options.only)?;
    let file = build(Kind::File, &options.only)?;
    let mut failed = Vec::new();
    for (kind, peers) in [(Kind::Redis, redis), (Kind::File, file)] {
        if peers.is_empty() {
            continue;
        }
        let place = Place::start(kind, &directory())?;
        let (table, more) = measure(&peers, &place, &sizes, options);
        println!("{table}");
        failed.extend(more);
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Builds the peers for this kind of store, or only the ones named in `only`.
fn build(kind: Kind, only: &[String]) -> Result<Vec<Peer>> {
    let directory = directory();
    let mut peers = Vec::new();
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    for (name, _) in peer::PEERS.into_iter().filter(|(name, of)| *of == kind && is_chosen(name)) {
        match Peer::build(name, &directory.join(name)) {
            Ok(peer) => peers.push(peer),
            Err(error) if only.is_empty() => eprintln!("{name} is left out: {error}"),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    Ok(peers)
}

/// Measures peers with the same kind of store. Also returns the ones that failed.
fn measure(
    peers: &[Peer],
    place: &Place,
    sizes: &Sizes,
    options: &Options,
) -> (Table, Vec<String>) {
    let (mut table, mut failed) = (Table::new(peers), Vec::new());
    for (name, measure) in MEASUREMENTS {
        if !options.measurements.is_empty() && !options.measurements.iter().any(|only| only == name)
        {
            continue;
        }
        // Peers take turns in each measurement, so a busy minute on the machine hits several.
        for (column, peer) in peers.iter().enumerate() {
            eprintln!("{name}: {}", peer.name);
            let rows = match measure(peer, place, sizes, options.million) {
                Ok(rows) => rows,
                Err(error) => {
                    eprintln!("  {error}");
                    failed.push(format!("{name} of {}", peer.name));
                    continue;
                }
            };
            for (row, value) in rows {
                eprintln!("  {row}: {value}");
                table.set(row, column, value);
            }
        }
    }
    (table, failed)
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers")
}
