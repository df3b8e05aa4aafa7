//! Tests the `redis-expiry` backend on real servers: expired keys cause hints, and no job depends
//! on them.

mod cluster;
mod fixture;
mod hints;
mod notifications;
mod punctual;
