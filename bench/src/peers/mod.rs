//! `dq-bench peers`: compares delayed jobs in dq and other libraries on private Redis and
//! PostgreSQL servers and on files.

mod limits;
mod measure;
mod own;
mod peer;
mod run;
mod server;
mod worker;

use std::path::{Path, PathBuf};

use clap::Args;
use measure::{Rows, Sizes};
pub(crate) use own::{QUEUE as OWN_QUEUE, run as own_program};
pub(crate) use peer::{OWN_PROGRAM, Peer};
pub(crate) use worker::Worker;

use crate::conditions::Conditions;
use crate::measure::Result;
use crate::store::Store;
use crate::table::markdown;

type Measurement = fn(&Peer, &Store, &Sizes, bool) -> Result<Rows>;

const MEASUREMENTS: [(&str, Measurement); 8] = [
    ("bulk", measure::bulk),
    ("single", measure::single),
    ("no-op", measure::no_op),
    ("snapshot", measure::snapshot),
    ("late", measure::late),
    ("idle", measure::idle),
    ("kill", measure::kill),
    ("limits", limits::limits),
];

/// The tables, each with its store. `serve` has workers in other languages, for `dq serve` on
/// Redis.
const TABLES: [(&str, &str); 4] =
    [("redis", "redis"), ("sqlite", "sqlite"), ("postgres", "postgres"), ("serve", "redis")];

/// Compares dq on Redis, SQLite and PostgreSQL with other libraries and prints a table for each.
///
/// The programs need Go 1.26, Node.js 22.12, Python 3 with venv, and a JDK 17 with Maven on the
/// PATH; a peer whose tools are missing is named and left out.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Prints only these tables.
    #[arg(long = "table", value_name = "TABLE", value_parser = TABLES.map(|(name, _)| name))]
    tables: Vec<String>,
    /// Measures only these peers.
    #[arg(long = "peer", value_name = "PEER", value_parser = peer::PEERS.map(|(name, ..)| name))]
    peers: Vec<String>,
    /// Makes only these measurements.
    #[arg(long = "measure", value_name = "NAME", value_parser = MEASUREMENTS.map(|(name, _)| name))]
    measurements: Vec<String>,
    /// Uses small sizes: a test of the programs, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Lateness beside a million pending jobs, too.
    #[arg(long)]
    million: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    let mut failed = Vec::new();
    let tables = TABLES.into_iter().filter(|(table, _)| is_chosen(&options.tables, table));
    let tables = tables.map(|(table, store)| Ok((table, store, build(table, &options.peers)?)));
    for (table, store, peers) in tables.collect::<Result<Vec<_>>>()? {
        if peers.is_empty() {
            continue;
        }
        let files = tempfile::tempdir_in(directory())?;
        let mut conditions = Conditions::observe(files.path(), options.quick);
        let store = Store::start(store, files.path())?;
        let mut measurements = MEASUREMENTS.to_vec();
        // Workers of `dq serve` only run jobs.
        measurements.retain(|(name, _)| table != "serve" || *name == "no-op");
        measurements.retain(|(name, _)| is_chosen(&options.measurements, name));
        failed.extend(measure(&peers, &store, &sizes, &measurements, options.million));
        conditions.finish(store.version().into_iter().collect());
        println!("{conditions}");
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Whether an option that can be repeated names it, or is absent.
fn is_chosen(named: &[String], name: &str) -> bool {
    named.is_empty() || named.iter().any(|it| it == name)
}

fn build(table: &str, named: &[String]) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    let chosen = peer::PEERS.into_iter().filter(|(_, _, of)| *of == table);
    for (name, version, _) in chosen.filter(|(name, ..)| is_chosen(named, name)) {
        match Peer::build(name, version, &directory().join(name)) {
            Ok(peer) => peers.push(peer),
            Err(error) if named.is_empty() => eprintln!("{name} is left out: {error}"),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    Ok(peers)
}

/// Measures peers on one store and prints the table. Returns the failed measurements.
fn measure(
    peers: &[Peer],
    store: &Store,
    sizes: &Sizes,
    measurements: &[(&str, Measurement)],
    million: bool,
) -> Vec<String> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut failed = Vec::new();
    for (name, measure) in measurements {
        // Peers take turns in each measurement, so a busy minute on the machine hits several.
        for (column, peer) in peers.iter().enumerate() {
            eprintln!("{name}: {}", peer.name);
            let measured = match measure(peer, store, sizes, million) {
                Ok(measured) => measured,
                Err(error) => {
                    eprintln!("  {error}");
                    failed.push(format!("{name} of {}", peer.name));
                    continue;
                }
            };
            for (row, value) in measured {
                eprintln!("  {row}: {value}");
                let at = rows.iter().position(|cells| cells[0] == row).unwrap_or_else(|| {
                    let empty = vec!["–".to_owned(); peers.len()];
                    rows.push([vec![row], empty].concat());
                    rows.len() - 1
                });
                rows[at][column + 1] = value;
            }
        }
    }
    let names = peers.iter().map(|peer| format!("{} {}", peer.name, peer.version));
    let head: Vec<String> = std::iter::once(String::new()).chain(names).collect();
    println!("{}", markdown(&head, rows));
    failed
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers")
}
