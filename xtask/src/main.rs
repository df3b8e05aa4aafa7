//! `cargo xtask COMMAND`: development commands, run by people and by CI.

mod crew;
mod faults;
mod layers;
mod licences;
mod oldest_rusqlite;
mod options;
mod package;
mod programs;
mod release;
mod run;
mod site;
mod soak;
mod test;
mod tool;
mod upgrade;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [FILTER]                     formatting, lints, layers, tests, short storms and soak, documentation; with
                                    FILTER only tests
  test --quick                      the tests that need no server
  layers                            checks that imports between files form no cycles
  servers                           fetches the programs that the tests need; `test` does it too
  bench [--only NAME] [--page FILE] runs the benchmarks behind the published figures, in release mode
  scale --backend X --pending N     measures with up to N pending jobs, in release mode; writes a table and a plot
  horizon [--seconds N]             measures PostgreSQL under an old snapshot, in release mode; writes a plot
  peers [--peer PEER] [--quick]     compares with other libraries side by side, on Redis, PostgreSQL and SQLite
  upgrade REVISION [STORE]          runs an older revision and this one side by side on each store
  upgrade REVISION STORE --raised   the same if this revision raises the format, so that the older one is refused
  faults --backend X [--seed N] [--minutes M | --seconds S]
                                    kills and cuts everything at random, and judges what processes saw
  faults --short                    short storms on each store, and storms over broken processes, as in `test`
  soak --backend X [--minutes N]    a steady load; memory, connections, files and keys must not grow
  soak --short                      a minute on SQLite, and over broken processes, as in `test`
  site                              builds the documentation's website in target/site, and checks its links
  licences                          checks the licences of all dependencies against deny.toml
  package                           packages every published crate and compiles it from its package
  release --dry-run                 checks a release, and prints the commands that publish it
  oldest-rusqlite                   checks dq-sqlite with the oldest rusqlite that it allows";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["test"] => test::everything(),
        ["test", "--quick"] => programs::run_quick(),
        ["test", filter] if !filter.starts_with('-') => test::filtered(filter),
        ["servers"] => test::servers(),
        [command @ ("bench" | "scale" | "horizon" | "peers"), ref rest @ ..] => {
            bench(command, rest)
        }
        ["upgrade", revision] => upgrade::upgrade(revision, None, false),
        ["upgrade", revision, store] => upgrade::upgrade(revision, Some(store), false),
        ["upgrade", revision, store, "--raised"] => upgrade::upgrade(revision, Some(store), true),
        ["layers"] => layers::layers(),
        ["faults", ref rest @ ..] => faults::faults(rest),
        ["soak", ref rest @ ..] => soak::soak(rest),
        ["site"] => site::site(),
        ["licences"] => licences::licences(),
        ["package"] => package::package(),
        ["release", "--dry-run"] => release::dry_run(),
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

/// Runs the package `dq-bench` in release mode. `command` is `bench`, or a command of the program.
fn bench(command: &str, arguments: &[&str]) -> run::Result {
    let mut bench = run::cargo(["run", "--release", "--package", "dq-bench", "--"]);
    bench.args((command != "bench").then_some(command)).args(arguments);
    run::step(command, &mut bench)
}
