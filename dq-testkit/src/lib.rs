//! The test kit of `dq`.
//!
//! - [`TestKit`]: an application's handlers on a virtual clock, without a server.
//! - [`behaviour`]: what every backend promises, as a suite of small trials.
//! - [`faults`]: backends that fail on demand, and one that writes down what its clients saw.
//! - [`history`]: a judge over what was written down.
//! - [`model`]: two backends, the same calls, the same answers.

pub mod behaviour;
pub mod faults;
pub mod history;
pub mod kit;
pub mod model;

pub use kit::{Ran, TestContext, TestKit};
