//! Runs the tests that need no server, their programs side by side.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::run::{Result, cargo};

/// Tests run with all features. Clippy gets the same ones, so that both share one build of SQLite.
pub(crate) const SCOPE: [&str; 2] = ["--workspace", "--all-features"];

/// Packages whose tests start no server, and arguments that leave out those that do.
const QUICK: [(&str, &[&str]); 9] = [
    ("dq-core", &[]),
    ("dq-cron", &[]),
    ("dq-macros", &[]),
    ("dq-metrics", &[]),
    ("dq-sqlite", &[]),
    ("dq-testkit", &[]),
    ("dq-tests behaviour", &["memory/virtual", "sqlite/virtual"]),
    ("dq-tests docs", &[]),
    ("dq-tests policies", &[]),
];

/// A test program, built.
#[derive(Debug, Clone)]
struct Binary {
    /// Package and target.
    name: String,
    package: String,
    program: PathBuf,
    /// The directory of the package, in which its tests run.
    directory: PathBuf,
    arguments: Vec<String>,
}

impl Binary {
    /// Reads a message of cargo about a test program; `None` for all others.
    fn parse(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        // `path+file:///DIRECTORY#NAME@VERSION`, without the name if it is that of the directory.
        let (_, id) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = match id.split_once('@') {
            Some((name, _)) => name.to_owned(),
            None => directory.file_name()?.to_str()?.to_owned(),
        };
        Some(Self {
            name: format!("{package} {}", message["target"]["name"].as_str()?),
            package,
            program: message["executable"].as_str()?.into(),
            directory,
            arguments: Vec::new(),
        })
    }

    /// Runs the tests, and prints their output if one fails. The error is the name of the program.
    fn run(&self) -> Result {
        let start = Instant::now();
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory).args(&self.arguments).stdin(Stdio::null());
        command.env("CARGO_MANIFEST_DIR", &self.directory).env("CARGO_PKG_NAME", &self.package);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", processors().to_string());
        }
        let name = &self.name;
        let output = command.output().map_err(|error| format!("{name}: {error}"))?;
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let result = stdout.lines().rfind(|line| line.contains("test result:"));
        let took = start.elapsed().as_secs_f64();
        println!("{name}: {took:.1} s, {}", result.unwrap_or("no result"));
        if output.status.success() {
            return Ok(());
        }
        println!("── {name} failed ({}):\n{stdout}{stderr}", output.status);
        Err(name.clone())
    }
}

/// Builds all test programs.
fn build() -> Result<Vec<Binary>> {
    let mut command = cargo(["test"]);
    command.args(SCOPE).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err("the tests cannot be built".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(Binary::parse).collect())
}

/// Builds all tests, and runs those that need no server.
pub(crate) fn quick() -> Result {
    let binaries = build()?.into_iter().filter_map(|binary| {
        let is_named = |name: &str| name == binary.package || name == binary.name;
        let (_, arguments) = QUICK.into_iter().find(|(name, _)| is_named(name))?;
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Some(Binary { arguments, ..binary })
    });
    run(binaries.collect())
}

/// Runs programs side by side. Those that fail do not keep the others from being run.
fn run(binaries: Vec<Binary>) -> Result {
    let waiting = Mutex::new(binaries.into_iter());
    let failures = Mutex::new(Vec::new());
    let lane = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(binary) = next else { break };
            if let Err(failure) = binary.run() {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
        }
    };
    // One more than there are processors, since programs often wait.
    thread::scope(|scope| (0..=processors()).for_each(|_| drop(scope.spawn(lane))));
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() { Ok(()) } else { Err(format!("failed: {}", failures.join(", "))) }
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
