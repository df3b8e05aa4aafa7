//! The Redis backends on a private server, compared to what the server itself can do.
//!
//! Bulks and claims with settlements are compared to additions to a sorted set, on one connection
//! with pipelines of 128 (`limit.rs`); single calls to a bare script. Both take turns and report
//! medians. The whole path is a median over several turns, without a reference. Transfers compare
//! medians over calls, one side after the other. Memory, lateness, jobs due at once and the idle
//! runner are measured once.

mod at_once;
mod idle;
mod late;
mod limit;
mod memory;
mod path;
mod server;
mod single;
mod store;
mod throughput;
mod transfer;
mod wire;

use self::server::RedisServer;
use self::store::{RedisStore, STORES};
use crate::plan::{Plan, Result};
use crate::table::Figure;

type Measure = fn(&Plan, &RedisServer, &'static RedisStore) -> Result<Vec<Figure>>;

/// Name, function, and whether it applies only to stores with `all_measurements`.
const MEASUREMENTS: [(&str, Measure, bool); 8] = [
    ("schedule", throughput::measure, false),
    ("single", single::measure, false),
    ("path", path::measure, false),
    ("memory", memory::measure, false),
    ("transfer", transfer::measure, true),
    ("late", late::measure, true),
    ("at-once", at_once::measure, true),
    ("idle", idle::measure, true),
];

pub(crate) fn names() -> Vec<&'static str> {
    MEASUREMENTS.iter().map(|measurement| measurement.0).collect()
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let server = RedisServer::start()?;
    let mut figures = Vec::new();
    for store in &STORES {
        let measurements = MEASUREMENTS
            .iter()
            .filter(|(name, _, extra)| plan.includes(name) && (store.all_measurements || !extra));
        for (_, measure, _) in measurements {
            figures.extend(measure(plan, &server, store)?);
        }
    }
    Ok(figures)
}

pub(crate) fn version() -> Result<String> {
    Ok(RedisServer::start()?.info("redis_version"))
}
