//! The test kit of `dq`.
//!
//! - [`TestKit`]: an application's handlers on a virtual clock, without a server.
//!
//! With the feature `suite`, for those who write a backend:
//! - `behaviour`: what every backend promises, as a suite of small trials.
//! - `faults`: backends that fail on demand, and one that writes down what its clients saw.
//! - `history`: a judge over what was written down.
//! - `model`: two backends, the same calls, the same answers.

#[cfg(feature = "suite")]
pub mod behaviour;
#[cfg(feature = "suite")]
pub mod faults;
#[cfg(feature = "suite")]
pub mod history;
pub mod kit;
#[cfg(feature = "suite")]
pub mod model;

pub use kit::{Ran, TestContext, TestKit};
