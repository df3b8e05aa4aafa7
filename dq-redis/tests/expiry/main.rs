//! Tests the backend with key expiry on real servers: its hints arrive, and no job depends on them.

mod cluster;
mod fixture;
mod hints;
mod notifications;
mod punctual;
