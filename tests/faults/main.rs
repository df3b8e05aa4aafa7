//! A runner process that aborts between every two of its steps, at chosen points.
//!
//! Each trial runs this program again as the process that crashes: see [`process`].

mod points;
mod process;
mod sweep;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(options) = process::ChildOptions::from_env() {
        return process::run(&options);
    }
    let mut trials: Vec<Trial> = points::trials();
    trials.extend(sweep::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
