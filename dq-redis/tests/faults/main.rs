//! The backends, mostly the native one, on real servers that fail, refuse calls, crash and restart.

mod crash;
mod cut;
mod flow;
mod foreign;
mod idle;
mod logs;
mod pressure;
mod proxy;
mod refused;
mod rights;
mod stand;
mod topology;
