//! All integration tests in one program, because linking is what takes long.

mod common;
mod prometheus;
mod runner;
