//! The backend with key expiry on real servers: its hints come, and nothing depends on them.

mod canary;
mod cluster;
mod hints;
mod punctual;
mod rig;
