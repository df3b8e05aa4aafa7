//! The backend on real brokers that fail, refuse, lie, die and come back.

mod absent;
mod alarm;
mod clocks;
mod cluster;
mod crash;
mod cut;
mod deleted;
mod far;
mod foreign;
mod proxy;
mod shortened;
mod slow;
mod stand;
mod storm;
mod two;
