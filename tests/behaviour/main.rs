//! The behaviour suite on every backend of this workspace, by URL, as applications open them.

use std::process::ExitCode;

use dq_testkit::behaviour::{self, Address, ByUrl};

// A backend registers itself only if its crate is named somewhere.
use dq as _;

fn main() -> ExitCode {
    behaviour::main(vec![
        ("memory/virtual", Box::new(ByUrl::on_virtual_time(|| "memory:".into()))),
        ("memory/real", Box::new(ByUrl::real(|| "memory:".into()))),
        ("sqlite/virtual", Box::new(ByUrl::on_virtual_time(file))),
        ("sqlite/real", Box::new(ByUrl::real(file))),
    ])
}

/// A file that goes when the trial ends.
fn file() -> Address {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let url = format!("sqlite://{}", directory.path().join("jobs.db").display());
    Address { url, keep: Box::new(directory) }
}
