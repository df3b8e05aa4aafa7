//! Queues with shards, on one server and on a cluster.

mod change;
mod fixture;
mod limits;
mod placement;
mod races;
