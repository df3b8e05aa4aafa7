//! A measurement's settings, progress output and child processes.

use std::error::Error;
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
}

impl Plan {
    pub(crate) fn full_or_quick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// First argument of this program's child processes; the second is their task.
pub(crate) const CHILD: &str = "child";

pub(crate) fn child_process(task: &str, arguments: &[&str]) -> Command {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(this);
    command.args([CHILD, task]).args(arguments);
    command
}

pub(crate) static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn progress(what: std::fmt::Arguments<'_>) {
    eprintln!("[{:6.1} s] {what}", START.elapsed().as_secs_f64());
}
