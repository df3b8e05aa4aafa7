//! `dq-bench peers`: compares delayed jobs in dq and other libraries on private Redis and PostgreSQL
//! servers and on files.

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

/// `serve` is `dq serve` on Redis, for workers in other languages.
const STORES: [&str; 4] = ["redis", "sqlite", "postgres", "serve"];

/// Compares dq on Redis, SQLite and PostgreSQL with other libraries and prints a table for each.
///
/// The programs need Go 1.26, Node.js 22.12, Python 3 with venv, and a JDK 17 with Maven on the PATH; a
/// peer whose tools are missing is named and left out.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Measures only on these stores.
    #[arg(long, value_name = "STORE", value_parser = STORES)]
    store: Vec<String>,
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
    let is_chosen =
        |store: &&str| options.store.is_empty() || options.store.iter().any(|name| name == store);
    let stores = STORES.into_iter().filter(is_chosen);
    let stores = stores.map(|store| Ok((store, build(store, &options.peers)?)));
    for (store, peers) in stores.collect::<Result<Vec<_>>>()? {
        if peers.is_empty() {
            continue;
        }
        let files = tempfile::tempdir_in(directory())?;
        let mut conditions = Conditions::observe(files.path(), options.quick);
        // Workers of `dq serve` only run jobs; its store is Redis.
        let is_serve = store == "serve";
        let store = Store::start(if is_serve { "redis" } else { store }, files.path())?;
        let is_possible = |measurement: &str| !is_serve || measurement == "no-op";
        failed.extend(measure(&peers, &store, &sizes, options, is_possible));
        conditions.finish(store.version().into_iter().collect());
        println!("{conditions}");
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

fn build(store: &str, named: &[String]) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    let is_chosen = |name: &str| named.is_empty() || named.iter().any(|it| it == name);
    let chosen = peer::PEERS.into_iter().filter(|(name, _, of)| *of == store && is_chosen(name));
    for (name, version, _) in chosen {
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
    options: &Options,
    is_possible: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut failed = Vec::new();
    let is_chosen = |name: &str| {
        is_possible(name)
            && (options.measurements.is_empty() || options.measurements.iter().any(|it| it == name))
    };
    for (name, measure) in MEASUREMENTS.into_iter().filter(|(name, _)| is_chosen(name)) {
        // Peers take turns in each measurement, so a busy minute on the machine hits several.
        for (column, peer) in peers.iter().enumerate() {
            eprintln!("{name}: {}", peer.name);
            let measured = match measure(peer, store, sizes, options.million) {
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
