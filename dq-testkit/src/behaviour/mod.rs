//! The contract of a backend as a suite of small trials.
//!
//! A *trial* tests one promise of the *Behaviour* lists in the docs of
//! [`Backend`](dq_core::Backend); the trials of one topic are in one file. The words are those of
//! the contract: a job is *live* while it waits or is leased (scheduled, ready or running), and
//! *waiting* while it is not leased; a lease is live until it is settled or *lapses*, which means
//! that it ends without a settlement; a lease or token that is not live any more is *stale*.
//!
//! A backend runs the suite in a test binary with `harness = false`:
//!
//! ```no_run
//! use dq_testkit::behaviour::{self, UrlBackend};
//!
//! fn main() -> std::process::ExitCode {
//!     behaviour::main(vec![
//!         ("memory", Box::new(UrlBackend::with_real_clock(|| "memory:".into()))),
//!         ("memory-virtual", Box::new(UrlBackend::with_virtual_clock(|| "memory:".into()))),
//!     ])
//! }
//! ```
//!
//! Trials that do not apply to a backend, because it lacks a capability or uses another kind of
//! clock, are absent from the list, not skipped.

mod again;
mod browse;
mod cancel;
mod claim;
mod client;
mod close;
mod crash;
mod dead;
mod detach;
mod due;
mod failure;
mod forecast;
mod history;
mod ids;
mod input;
mod isolation;
mod keys;
mod lease;
mod load;
mod pause;
mod pins;
mod policies;
mod reasons;
mod recurring;
mod registry;
mod reschedule;
mod run;
mod schedule;
mod settle;
mod shared;
mod stats;
mod store;
mod trial;
mod under_test;
mod unsupported;
mod url;
mod wake;

pub use failure::{Failure, TrialResult};
pub use run::{main, run, trials_for};
pub use trial::Trial;
pub use under_test::{BackendUnderTest, StoreClock, StoreUnderTest};
pub use url::{StoreUrl, UrlBackend};

/// Every trial, topic by topic.
pub fn trials() -> impl Iterator<Item = &'static Trial> {
    [
        schedule::TRIALS,
        due::TRIALS,
        claim::TRIALS,
        lease::TRIALS,
        settle::TRIALS,
        keys::TRIALS,
        cancel::TRIALS,
        reschedule::TRIALS,
        stats::TRIALS,
        browse::TRIALS,
        dead::TRIALS,
        pause::TRIALS,
        again::TRIALS,
        policies::TRIALS,
        detach::TRIALS,
        reasons::TRIALS,
        history::TRIALS,
        ids::TRIALS,
        pins::TRIALS,
        recurring::TRIALS,
        registry::TRIALS,
        forecast::TRIALS,
        wake::TRIALS,
        isolation::TRIALS,
        input::TRIALS,
        close::TRIALS,
        crash::TRIALS,
        shared::TRIALS,
        load::TRIALS,
        unsupported::TRIALS,
    ]
    .into_iter()
    .flatten()
}
