//! Tests for `dq`.
//!
//! - [`TestKit`] runs an application's handlers on a virtual clock, without a server.
//!
//! The feature `suite` adds what the author of a backend needs:
//! - `behaviour`: the contract of a backend as a suite of small trials;
//! - `faults`: outages, crashes and broken connections on demand, and a recorder of calls;
//! - `fixture`: jobs, calls and runners for tests on real servers;
//! - `history`: a checker that finds violations of the contract in recorded calls;
//! - `model`: a comparison of two backends, call by call.

#[cfg(feature = "suite")]
pub mod behaviour;
#[cfg(feature = "suite")]
pub mod faults;
#[cfg(feature = "suite")]
pub mod fixture;
#[cfg(feature = "suite")]
pub mod history;
pub mod kit;
#[cfg(feature = "suite")]
pub mod model;

pub use kit::{HandlerRun, TestContext, TestKit};
