//! `kill -9` of a runner between every two of its steps, by named points and not by luck.
//!
//! Each trial runs this very program again as the process that dies: see [`process`].

mod points;
mod process;
mod sweep;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(orders) = process::Orders::given() {
        return process::run(&orders);
    }
    let mut trials: Vec<Trial> = points::trials();
    trials.extend(sweep::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
