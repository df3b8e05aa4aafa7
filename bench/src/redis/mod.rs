//! The Redis backends on a private server, compared to what that server can do.
//!
//! Rates of bulks, and of claims with settlements, are compared with that of additions to a sorted set on
//! one connection with pipelines of 128 (`limit.rs`), single calls with a bare script: both in turns, with
//! medians of several. The whole path is a median of several turns, compared with nothing. Transfers are
//! compared by medians of calls, first all of one side and then all of the other. Memory, lateness, jobs due
//! at once and the idle runner are measured once.

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

/// Name, function, and whether the measurement applies only to stores with `all_measurements`.
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

/// Names for `--only redis/NAME`.
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

/// Version of `redis-server`.
pub(crate) fn version() -> Result<String> {
    Ok(RedisServer::start()?.info("redis_version"))
}
