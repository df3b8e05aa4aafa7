//! A runner process that aborts, like a crash, at each named point and each of its events.
//!
//! Two [`every_event`] trials cover the events: one the odd numbers, one the even. Each trial runs
//! this program again as the aborting process; see [`process`].

mod every_event;
mod points;
mod process;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(options) = process::ChildOptions::from_env() {
        return process::run(&options);
    }
    let mut trials: Vec<Trial> = points::trials();
    trials.extend(every_event::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
