//! The Redis backends on a private server of their own, in relation to what that server can do.
//!
//! The limit is what one connection gets from a sorted set when it sends its additions 128 at a
//! time. All comparisons are made side by side, in turns, and the middle of several is taken.

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

use self::server::Server;
use self::store::{STORES, Store};
use crate::plan::{Plan, Result};
use crate::table::Figure;

type Measure = fn(&Plan, &Server, &'static Store) -> Result<Vec<Figure>>;

/// With their names, and whether they are only made of stores that are measured as a whole.
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

/// What can be asked for one by one.
pub(crate) fn names() -> Vec<&'static str> {
    MEASUREMENTS.iter().map(|measurement| measurement.0).collect()
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let server = Server::start()?;
    let mut figures = Vec::new();
    for store in &STORES {
        let measurements = MEASUREMENTS
            .iter()
            .filter(|(name, _, whole)| plan.includes(name) && (store.whole || !whole));
        for (_, measure, _) in measurements {
            figures.extend(measure(plan, &server, store)?);
        }
    }
    Ok(figures)
}

/// What `redis-server` says of itself.
pub(crate) fn version() -> Result<String> {
    Ok(Server::start()?.info("redis_version"))
}
