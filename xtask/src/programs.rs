//! The workspace's test programs: built with one cargo call, run in two lanes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::run::{Result, cargo, in_lanes, output};

/// Tests and Clippy use the same features, so they share one SQLite build.
pub(crate) const SCOPE: [&str; 2] = ["--workspace", "--all-features"];

/// Programs that run side by side, because most of them mostly wait for servers.
const LANES: usize = 2;

/// Threads per processor for a program, unless `RUST_TEST_THREADS` is set. Programs with their own
/// harness choose their own number.
const THREADS_PER_PROCESSOR: usize = 2;

/// How many characters of failed tests' output are repeated at the end, where a long log is read
/// first.
const REASONS: usize = 8_000;

/// The programs that take longest, in the order in which they start: first those that mostly wait.
const LONG: [&str; 6] = [
    "dq-rabbit faults",
    "dq-tests examples",
    "dq-tests behaviour",
    "dq-web all",
    "dq-tests clients",
    "dq-rabbit",
];

/// Programs without a server, each with a filter. A name without a target means the whole package.
const QUICK: [(&str, &str); 9] = [
    ("dq-core", ""),
    ("dq-cron", ""),
    ("dq-macros", ""),
    ("dq-sqlite", ""),
    ("dq-testkit", ""),
    ("dq-tests behaviour", "memory/virtual"),
    ("dq-tests behaviour", "sqlite/virtual"),
    ("dq-tests docs", ""),
    ("dq-tests policies", ""),
];

#[derive(Debug, Clone)]
pub(crate) struct Program {
    package: String,
    target: String,
    executable: PathBuf,
    /// The package's directory, where tests run.
    directory: PathBuf,
    filter: String,
}

impl Program {
    fn parse(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        // `path+file:///DIRECTORY#NAME@VERSION`, without NAME if the directory has the same name.
        let (_, id) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = match id.split_once('@') {
            Some((name, _)) => name.to_owned(),
            None => directory.file_name()?.to_str()?.to_owned(),
        };
        Some(Self {
            package,
            target: message["target"]["name"].as_str()?.to_owned(),
            executable: message["executable"].as_str()?.into(),
            directory,
            filter: String::new(),
        })
    }

    fn is_called(&self, name: &str) -> bool {
        name == self.package || name == self.name()
    }

    fn name(&self) -> String {
        format!("{} {} {}", self.package, self.target, self.filter).trim_end().to_owned()
    }

    /// Runs the tests. Prints their output; the error names the failed ones.
    fn run(&self) -> Result {
        let name = self.name();
        let start = Instant::now();
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory).stdin(Stdio::null());
        command.args((!self.filter.is_empty()).then_some(&self.filter));
        // Cargo sets these variables; `trybuild` reads them.
        command.env("CARGO_MANIFEST_DIR", &self.directory).env("CARGO_PKG_NAME", &self.package);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            command.env("RUST_TEST_THREADS", (THREADS_PER_PROCESSOR * processors).to_string());
        }
        let output = command.output().map_err(|error| format!("{name}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let result = stdout.lines().rfind(|line| line.contains("test result:"));
        let took = start.elapsed().as_secs_f64();
        println!("{name}: {took:.1} s, {}", result.unwrap_or("no result"));
        if output.status.success() {
            return Ok(());
        }
        println!("{stdout}{stderr}");
        let failed: Vec<_> = stdout.lines().filter(|line| line.ends_with("FAILED")).collect();
        // What the failed tests printed; without it the program crashed.
        let reasons = match stdout.split_once("\nfailures:\n") {
            Some((_, reasons)) => reasons.chars().take(REASONS).collect::<String>(),
            None => {
                let lines: Vec<_> = stderr.lines().collect();
                lines[lines.len().saturating_sub(20)..].join("\n")
            }
        };
        Err(format!("{name} ({}): {}\n{reasons}", output.status, failed.join(", ")))
    }
}

/// Builds all test programs. Returns them in the order in which they are to start.
pub(crate) fn build() -> Result<Vec<Program>> {
    let mut command = cargo(["test"]);
    command.args(SCOPE).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let messages = output("building the tests", command.stderr(Stdio::inherit()))?;
    let mut programs: Vec<Program> = messages.lines().filter_map(Program::parse).collect();
    programs.sort_by_key(|program| {
        LONG.iter().position(|name| program.is_called(name)).unwrap_or(LONG.len())
    });
    Ok(programs)
}

pub(crate) fn run_quick() -> Result {
    let programs = build()?;
    let mut quick = Vec::new();
    for (name, filter) in QUICK {
        let before = quick.len();
        let called = programs.iter().filter(|program| program.is_called(name));
        quick.extend(called.map(|program| Program { filter: filter.into(), ..program.clone() }));
        if quick.len() == before {
            return Err(format!("there is no test program {name}: mend QUICK in programs.rs"));
        }
    }
    run(&quick)
}

pub(crate) fn run(programs: &[Program]) -> Result {
    in_lanes(LANES, programs, Program::run).map_err(|failed| format!("tests failed:\n{failed}"))
}
