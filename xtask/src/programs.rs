//! The workspace's test programs: built with one cargo call, run one after another.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::run::{Result, cargo, output};

/// Tests and Clippy use the same features, so they share one SQLite build.
pub(crate) const SCOPE: [&str; 2] = ["--workspace", "--all-features"];

/// Threads per processor for a test program, unless `RUST_TEST_THREADS` is set: tests mostly wait
/// for servers. Programs with their own harness choose their own number.
const THREADS_PER_PROCESSOR: usize = 2;

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
    /// Parses a cargo message; `None` if it is not about a test program.
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
        set_threads(&mut command);
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
        let failed = stdout.lines().filter(|line| line.ends_with("FAILED"));
        Err(format!("{name} ({}): {}", output.status, failed.collect::<Vec<_>>().join(", ")))
    }
}

pub(crate) fn build() -> Result<Vec<Program>> {
    let mut command = cargo(["test"]);
    command.args(SCOPE).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let messages = output("building the tests", command.stderr(Stdio::inherit()))?;
    Ok(messages.lines().filter_map(Program::parse).collect())
}

pub(crate) fn quick(programs: &[Program]) -> Result<Vec<Program>> {
    let mut quick = Vec::new();
    for (name, filter) in QUICK {
        let is_meant = |program: &&Program| program.package == name || program.name() == name;
        let before = quick.len();
        let with_filter = |program: &Program| Program { filter: filter.into(), ..program.clone() };
        quick.extend(programs.iter().filter(is_meant).map(with_filter));
        if quick.len() == before {
            return Err(format!("there is no test program {name}: mend QUICK in programs.rs"));
        }
    }
    Ok(quick)
}

/// Runs all programs, even after a failure.
pub(crate) fn run(programs: &[Program]) -> Result {
    let failed: Vec<String> = programs.iter().filter_map(|program| program.run().err()).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("tests failed:\n{}", failed.join("\n"))) }
}

/// Sets the number of test threads, unless the environment does.
pub(crate) fn set_threads(command: &mut Command) {
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        command.env("RUST_TEST_THREADS", (processors * THREADS_PER_PROCESSOR).to_string());
    }
}
