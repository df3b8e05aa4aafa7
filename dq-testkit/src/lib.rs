//! Test utilities for applications that use `dq`, and for authors of backends.
//!
//! For applications:
//! - [`TestKit`] runs the application's handlers on a virtual clock, without a server;
//! - [`HandlerRun`] is one run of a handler, as the kit reports it;
//! - [`TestContext`] builds a job context, to call a handler as a function.
//!
//! For authors of backends, with the feature `suite`:
//! - `behaviour`: a suite of trials, one for each promise of the `Backend` contract;
//! - `faults`: outages, crashes and broken connections on demand, and a recorder of calls;
//! - `fixture`: jobs, calls and runners for tests on real servers;
//! - `fuzz`: random and mutated input for decoders, with the feature `proptest`;
//! - `history`: a checker that finds violations of the promises in recorded calls;
//! - `model`: a comparison of two backends, call by call; with the feature `proptest` for random
//!   sequences of calls.

#[cfg(feature = "suite")]
pub mod behaviour;
#[cfg(feature = "suite")]
pub mod faults;
#[cfg(feature = "suite")]
pub mod fixture;
#[cfg(feature = "proptest")]
pub mod fuzz;
#[cfg(feature = "suite")]
pub mod history;
pub mod kit;
#[cfg(feature = "suite")]
pub mod model;

pub use kit::{HandlerRun, TestContext, TestKit};
