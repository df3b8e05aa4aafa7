//! All integration tests in one program, because linking is what takes long.

mod client;
mod pull;
mod runner;
