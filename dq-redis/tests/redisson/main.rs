//! Tests the Redisson backend on real servers, with raw commands in place of Java clients. Real Java
//! clients are in `tests/interop` of the workspace.

mod cluster;
mod codecs;
mod destination_list;
mod fixture;
mod foreign;
mod full;
mod ids;
mod visibility;
