//! Test utilities for applications that use `dq`, and for authors of backends.
//!
//! For applications:
//! - [`TestKit`] runs your handlers on a virtual clock, without a server;
//! - [`HandlerRun`] reports one handler run;
//! - [`TestContext`] builds a job context, so that you can call a handler as a function.
//!
//! For authors of backends, with the feature `suite`:
//! - `behaviour`: a suite of trials of the `Backend` contract's promises;
//! - `faults`: crashes and broken connections on demand, and call recorders;
//! - `fixture`: jobs, calls and runners for tests on real servers;
//! - `fuzz`: random and mutated input for decoders (feature `proptest`);
//! - `trace`: a checker for broken promises in recorded calls;
//! - `model`: compares two backends call by call, also with random sequences (feature `proptest`).

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "suite")]
pub mod behaviour;
#[cfg(feature = "suite")]
pub mod faults;
#[cfg(feature = "suite")]
pub mod fixture;
#[cfg(feature = "proptest")]
pub mod fuzz;
pub mod kit;
#[cfg(feature = "suite")]
pub mod model;
#[cfg(feature = "suite")]
pub mod trace;

pub use kit::{HandlerRun, TestContext, TestKit};
