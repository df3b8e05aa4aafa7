//! The test kit of `dq`.
//!
//! - [`TestKit`]: an application's handlers on a virtual clock, without a server.
//! - [`behaviour`]: what every backend promises, as a suite of small trials.

pub mod behaviour;
pub mod kit;

pub use kit::{Ran, TestContext, TestKit};
