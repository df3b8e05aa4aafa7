//! All integration tests in one program, because linking is what takes long. Other crates' tests
//! use the servers' settings, crashes and restarts.

mod left_behind;
mod postgres;
mod start;
