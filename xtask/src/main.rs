//! `cargo xtask COMMAND`: what is run on this repository, by people and by CI.

mod bench;
mod licences;
mod oldest_rusqlite;
mod run;
mod servers;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [FILTER]                     formatting, lints, tests, documentation; with FILTER only tests
  servers                           fetches the programs that the tests need; `test` does it too
  bench [--only NAME] [--json FILE] the benchmarks behind the published figures, in release mode
  licences                          licences of all dependencies against deny.toml
  oldest-rusqlite                   dq-sqlite against the oldest rusqlite that it allows";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["test"] => test::everything(),
        ["test", filter] if !filter.starts_with('-') => test::filtered(filter),
        ["servers"] => servers::servers(),
        ["bench", ref rest @ ..] => bench::bench(rest),
        ["licences"] => licences::licences(),
        ["oldest-rusqlite"] => oldest_rusqlite::oldest_rusqlite(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
