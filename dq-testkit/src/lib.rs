//! The test kit of `dq`.
//!
//! - [`behaviour`]: what every backend promises, as a suite of small trials.

pub mod behaviour;
