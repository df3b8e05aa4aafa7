//! Tests the `redisson` backend on real Redis servers. Raw commands stand in for Java clients; the
//! workspace's `tests/interop` has tests with real ones.

mod cluster;
mod codecs;
mod destination_list;
mod fixture;
mod foreign;
mod full;
mod ids;
mod java_timer;
mod visibility;
