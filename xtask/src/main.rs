//! `cargo xtask COMMAND`: development commands, run by people and by CI.

mod bench;
mod layers;
mod licences;
mod oldest_rusqlite;
mod package;
mod run;
mod servers;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [FILTER]                     formatting, lints, layers, tests, documentation; with FILTER only tests
  layers                            checks that imports between files form no cycles
  servers                           fetches the programs that the tests need; `test` does it too
  bench [--only NAME] [--json FILE] runs the benchmarks behind the published figures, in release mode
  licences                          checks the licences of all dependencies against deny.toml
  package                           packages every published crate and builds it from its package
  oldest-rusqlite                   checks dq-sqlite with the oldest rusqlite that it allows";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["test"] => test::everything(),
        ["test", filter] if !filter.starts_with('-') => test::filtered(filter),
        ["servers"] => servers::servers(),
        ["bench", ref rest @ ..] => bench::bench(rest),
        ["layers"] => layers::layers(),
        ["licences"] => licences::licences(),
        ["package"] => package::package(),
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
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
