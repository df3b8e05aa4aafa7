//! What every backend promises, as a suite of small trials.
//!
//! A backend's own test binary has no harness of its own and hands its subjects over:
//!
//! ```no_run
//! use dq_testkit::behaviour::{self, ByUrl};
//!
//! fn main() -> std::process::ExitCode {
//!     behaviour::main(vec![
//!         ("memory", Box::new(ByUrl::real(|| "memory:".into()))),
//!         ("memory-virtual", Box::new(ByUrl::on_virtual_time(|| "memory:".into()))),
//!     ])
//! }
//! ```
//!
//! A trial that says nothing about a backend, because it lacks the capability or goes by another
//! kind of clock, is absent from its list.

mod browse;
mod cancel;
mod claim;
mod close;
mod crash;
mod dead;
mod due;
mod failure;
mod handle;
mod input;
mod isolation;
mod keys;
mod lease;
mod load;
mod pause;
mod reschedule;
mod run;
mod schedule;
mod settle;
mod shared;
mod stand;
mod stats;
mod subject;
mod trial;
mod unsupported;
mod url;
mod wake;

pub use failure::{Failure, Passed};
pub use run::{main, run, trials_for};
pub use subject::{Store, Subject, Time};
pub use trial::Trial;
pub use url::{Address, ByUrl};

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
