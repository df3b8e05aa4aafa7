//! The behaviour suite: small trials for the contract of a backend.
//!
//! Each *trial* tests one promise from the *Behaviour* lists in the docs of
//! [`Backend`](dq_core::Backend). Each file covers one topic.
//!
//! The suite uses the contract's words. A job is *live* while it waits or is leased (scheduled,
//! ready or running), and *waiting* while it is not leased. A lease is held until it is settled or
//! *expires* without a settlement; then it is *lost*, and calls with it answer `LostLease`.
//!
//! Trials make single calls, or need several clients, crashes, waiting or many jobs. Compare the
//! backend with the memory backend, too: [`model::check`](crate::model::check) finds wrong
//! combinations of calls, for which there are no trials.
//!
//! Run the suite for your backend in a test binary with `harness = false`:
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
//! The list leaves out trials that do not apply to your backend, because it lacks a capability or
//! uses another kind of clock. They do not appear as skipped.

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
mod exit;
mod failure;
mod flow;
mod forecast;
mod groups;
mod history;
mod ids;
mod isolation;
mod keys;
mod lease;
mod load;
mod pause;
mod reasons;
mod registry;
mod reschedule;
mod run;
mod schedule;
mod settle;
mod shared;
mod stats;
mod store;
mod targets;
mod trial;
mod under_test;
mod url;
mod wake;

pub use failure::{Failure, TrialResult};
pub use run::{main, run, trials_for};
pub use trial::Trial;
pub use under_test::{BackendUnderTest, StoreClock, StoreUnderTest};
pub use url::{StoreUrl, UrlBackend};

/// Returns every trial, topic by topic.
pub fn trials() -> impl Iterator<Item = &'static Trial> {
    [
        schedule::TRIALS,
        due::TRIALS,
        claim::TRIALS,
        lease::TRIALS,
        settle::TRIALS,
        keys::TRIALS,
        targets::TRIALS,
        cancel::TRIALS,
        reschedule::TRIALS,
        stats::TRIALS,
        browse::TRIALS,
        dead::TRIALS,
        pause::TRIALS,
        flow::TRIALS,
        groups::TRIALS,
        again::TRIALS,
        detach::TRIALS,
        reasons::TRIALS,
        history::TRIALS,
        ids::TRIALS,
        registry::TRIALS,
        forecast::TRIALS,
        wake::TRIALS,
        isolation::TRIALS,
        close::TRIALS,
        crash::TRIALS,
        shared::TRIALS,
        load::TRIALS,
    ]
    .into_iter()
    .flatten()
}
