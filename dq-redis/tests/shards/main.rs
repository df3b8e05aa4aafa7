//! Queues that are spread over shards, in numbers that change, on one server and on a cluster.

mod keys;
mod life;
mod resize;
mod rig;
