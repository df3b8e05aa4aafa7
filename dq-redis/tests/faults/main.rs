//! The native backend on real servers that fail, refuse, lie, die and come back.

mod crash;
mod cut;
mod foreign;
mod idle;
mod pressure;
mod proxy;
mod refused;
mod rights;
mod stand;
mod topology;
