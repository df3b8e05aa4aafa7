//! A measurement group's settings, progress output and child processes.

use std::error::Error;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug)]
pub(crate) struct Plan {
    /// Directory for files: empty at the start, removed at the end.
    pub(crate) dir: PathBuf,
    /// Use small sizes, which test the bench but measure nothing.
    pub(crate) quick: bool,
    /// The measurements to run; all if empty.
    pub(crate) only: Vec<String>,
}

impl Plan {
    pub(crate) fn includes(&self, measurement: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == measurement)
    }

    pub(crate) fn full_or_quick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

pub(crate) fn child_process<const N: usize>(task: &str, args: [&OsStr; N]) -> Command {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(this);
    command.arg("--child").arg(task).args(args);
    command
}

pub(crate) static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn progress(what: std::fmt::Arguments<'_>) {
    eprintln!("[{:6.1} s] {what}", START.elapsed().as_secs_f64());
}
