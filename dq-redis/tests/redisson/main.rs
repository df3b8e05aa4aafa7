//! The Redisson backend on real servers: Java's structures beside ours, as raw commands show them.
//! Real Java clients are in `tests/interop` of the workspace.

mod cluster;
mod codecs;
mod foreign;
mod full;
mod ids;
mod order_list;
mod rig;
mod target_list;
