//! Tests the `redis-expiry` backend on real servers: hints of expired keys arrive, and no job
//! depends on them.

mod cluster;
mod fixture;
mod hints;
mod notifications;
mod punctual;
