//! The backends, mostly the native one, on real servers that fail, refuse calls, crash and restart.

mod crash;
mod cut;
mod fixture;
mod flow;
mod foreign;
mod idle;
mod pressure;
mod refused;
mod rights;
mod topology;
