//! `dq-bench peers`: compares delayed jobs in dq and other libraries on one private Redis server
//! and on files.

mod measure;
mod own;
mod peer;
mod worker;

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use measure::{MEASUREMENTS, Sizes};
pub(crate) use own::run as own_program;
pub(crate) use peer::OWN_PROGRAM;
use peer::{PEERS, Peer};

use crate::plan::Result;
use crate::store::Store;
use crate::table::markdown;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measures only this peer.
    #[arg(long, value_name = "PEER")]
    #[arg(value_parser = PossibleValuesParser::new(PEERS.map(|(peer, _)| peer)))]
    only: Vec<String>,
    /// Makes only this measurement.
    #[arg(long, value_name = "NAME")]
    #[arg(value_parser = PossibleValuesParser::new(MEASUREMENTS.map(|(name, _)| name)))]
    measure: Vec<String>,
    /// Uses small sizes: a test of the programs, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Also measures lateness beside a million pending jobs.
    #[arg(long)]
    million: bool,
}

impl Options {
    fn sizes(&self) -> Sizes {
        let mut sizes = if self.quick { Sizes::quick() } else { Sizes::full() };
        sizes.pending.extend(self.million.then_some(1_000_000));
        sizes
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let sizes = options.sizes();
    let stores = ["redis", "sqlite"].map(|store| Ok((store, build(store, &options.only)?)));
    // All peers are built before the first measurement.
    let stores: Vec<(&str, Vec<Peer>)> = stores.into_iter().collect::<Result<_>>()?;
    let mut failed = Vec::new();
    for (store, peers) in stores.into_iter().filter(|(_, peers)| !peers.is_empty()) {
        let files = tempfile::tempdir_in(directory())?;
        let store = Store::start(store, files.path())?;
        failed.extend(measure(&peers, &store, &sizes, &options.measure));
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Whether a name is in a list of choices. An empty list chooses all.
fn is_chosen(choices: &[String], name: &str) -> bool {
    choices.is_empty() || choices.iter().any(|choice| choice == name)
}

/// Builds a store's chosen peers. A peer that cannot be built is left out unless it was named.
fn build(store: &str, only: &[String]) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    let of_store = PEERS.into_iter().filter(|(_, peer_store)| *peer_store == store);
    for (name, _) in of_store.filter(|(name, _)| is_chosen(only, name)) {
        match Peer::build(name, &directory().join(name)) {
            Ok(peer) => peers.push(peer),
            Err(error) if only.is_empty() => eprintln!("{name} is left out: {error}"),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    Ok(peers)
}

/// Measures peers on one store and prints the table. Returns the failed measurements.
fn measure(peers: &[Peer], store: &Store, sizes: &Sizes, only: &[String]) -> Vec<String> {
    let mut table = Table { columns: peers.len(), rows: Vec::new() };
    let mut failed = Vec::new();
    for (name, measure) in MEASUREMENTS.into_iter().filter(|(name, _)| is_chosen(only, name)) {
        // Peers take turns in each measurement, so a busy minute on the machine hits several.
        for (column, peer) in peers.iter().enumerate() {
            eprintln!("{name}: {}", peer.name);
            match measure(peer, store, sizes) {
                Ok(rows) => rows.into_iter().for_each(|(row, value)| table.set(row, column, value)),
                Err(error) => {
                    eprintln!("  {error}");
                    failed.push(format!("{name} of {}", peer.name));
                }
            }
        }
    }
    let names = peers.iter().map(|peer| format!("{} {}", peer.name, peer.version));
    let head: Vec<String> = std::iter::once(String::new()).chain(names).collect();
    println!("{}", markdown(&head, table.rows));
    failed
}

/// A column for each peer. Rows keep the order in which they were first set.
struct Table {
    columns: usize,
    /// Each row's name, then its cells.
    rows: Vec<Vec<String>>,
}

impl Table {
    fn set(&mut self, row: String, column: usize, value: String) {
        eprintln!("  {row}: {value}");
        let index = self.rows.iter().position(|cells| cells[0] == row).unwrap_or_else(|| {
            let empty = vec!["–".to_owned(); self.columns];
            self.rows.push([vec![row], empty].concat());
            self.rows.len() - 1
        });
        self.rows[index][column + 1] = value;
    }
}

/// The directory of all peers' builds.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers")
}
