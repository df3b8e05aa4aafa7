//! The behaviour suite on every backend of this workspace, by URL, as applications open them.

use std::process::ExitCode;

use dq_testkit::behaviour::{self, ByUrl};

// A backend registers itself only if its crate is named somewhere.
use dq as _;

fn main() -> ExitCode {
    behaviour::main(vec![
        ("memory/virtual", Box::new(ByUrl::on_virtual_time(|| "memory:".into()))),
        ("memory/real", Box::new(ByUrl::real(|| "memory:".into()))),
    ])
}
