//! CI's selection: a short storm on each store, which must keep the promises, and storms over
//! deliberate defects, which must break them.

use std::time::{Duration, Instant};

use super::fault::DEFECTS;
use super::run::{Run, build};
use super::server::Server;
use crate::run::{Result, in_lanes};

const STORMS: [(&str, u64); 6] = [
    ("rabbitmq", 2),
    ("redis-expiry", 1),
    ("redisson", 3),
    ("postgres", 5),
    ("redis", 4),
    ("sqlite", 6),
];

/// A busy machine may not show a defect within seconds; then longer storms follow.
const DEFECT_LENGTHS: [Duration; 3] =
    [Duration::from_secs(4), Duration::from_secs(40), Duration::from_secs(200)];

const LANES: usize = 3;

pub(crate) fn selection() -> Result {
    STORMS.iter().try_for_each(|(store, _)| Server::install(store))?;
    build()?;
    println!("── storms");
    let start = Instant::now();
    let storms = STORMS.iter().map(|(store, seed)| (*store, *seed, None));
    let defects = DEFECTS.iter().map(|defect| ("sqlite", 1, Some(defect)));
    let all: Vec<_> = storms.chain(defects).collect();
    in_lanes(LANES, &all, |(store, seed, defect)| match defect {
        None => sound(store, *seed),
        Some((name, finding)) => defective(store, *seed, name, finding),
    })
    .map_err(|failed| format!("storms failed:\n{failed}"))?;
    println!("── storms: ok, {:.1} s\n", start.elapsed().as_secs_f64());
    Ok(())
}

fn sound(store: &str, seed: u64) -> Result {
    let run = Run { store: store.to_owned(), seed, length: None, defect: None };
    let report = run.execute()?;
    if report.is_violated {
        return Err(format!("{run}:\n{}", report.text));
    }
    println!("   {run}: ok\n{}", report.text.trim_end());
    Ok(())
}

/// Runs a storm over a defect until the judge has found it.
fn defective(store: &str, seed: u64, defect: &str, finding: &str) -> Result {
    let mut seen = String::new();
    for length in DEFECT_LENGTHS {
        let (length, defect) = (Some(length), Some(defect.to_owned()));
        let run = Run { store: store.to_owned(), seed, length, defect };
        match run.execute() {
            Ok(report) if report.is_violated && report.text.contains(finding) => {
                println!("   {run}: found, as it should be: {finding}…");
                return Ok(());
            }
            Ok(report) => seen = report.text,
            Err(error) => seen = error,
        }
    }
    Err(format!("the defect {defect} was not found: no {finding:?} in\n{seen}"))
}
