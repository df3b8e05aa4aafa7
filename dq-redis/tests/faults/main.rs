//! The backends, mostly the native one, on real servers that fail, refuse, lie, die and come back.

mod crash;
mod cut;
mod flow;
mod foreign;
mod idle;
mod pressure;
mod proxy;
mod refused;
mod rights;
mod stand;
mod told;
mod topology;
