//! The conditions of a run: machine, software and load.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Conditions {
    date: String,
    revision: String,
    cpu: String,
    cores: usize,
    memory: String,
    kernel: String,
    file_system: String,
    rustc: String,
    sqlite: &'static str,
    /// The measured servers and their settings.
    pub(crate) servers: BTreeSet<String>,
    load_before: String,
    load_after: String,
    quick: bool,
}

impl Conditions {
    /// Reads the conditions. `dir` is for the run's files.
    pub(crate) fn observe(dir: &Path, quick: bool) -> Self {
        Self {
            date: dq::Timestamp::from(SystemTime::now()).to_string(),
            revision: output("git", &["describe", "--always", "--dirty"]),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory: field("/proc/meminfo", "MemTotal"),
            kernel: read("/proc/sys/kernel/osrelease"),
            file_system: file_system(dir),
            rustc: output("rustc", &["--version"]),
            sqlite: dq::sqlite::rusqlite::version(),
            servers: BTreeSet::new(),
            load_before: read("/proc/loadavg"),
            load_after: String::new(),
            quick,
        }
    }

    pub(crate) fn finish(&mut self) {
        self.load_after = read("/proc/loadavg");
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "date         {}", self.date)?;
        writeln!(f, "revision     {}", self.revision)?;
        writeln!(f, "CPU          {}, {} cores", self.cpu, self.cores)?;
        writeln!(f, "memory       {}", self.memory)?;
        writeln!(f, "kernel       {}", self.kernel)?;
        writeln!(f, "file system  {}", self.file_system)?;
        writeln!(f, "compiler     {}, release profile", self.rustc)?;
        writeln!(f, "SQLite       {}", self.sqlite)?;
        for server in &self.servers {
            writeln!(f, "server       {server}")?;
        }
        writeln!(f, "load average {}", self.load_before)?;
        if !self.load_after.is_empty() {
            writeln!(f, "… at the end {}", self.load_after)?;
        }
        if self.quick {
            writeln!(f, "QUICK: small sizes; the figures are meaningless")?;
        }
        Ok(())
    }
}

const UNKNOWN: &str = "unknown";

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| UNKNOWN.to_owned(), |text| text.trim().to_owned())
}

/// The first value of a field in a file with `name: value` lines.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_once(':'));
    value.map_or(UNKNOWN, |(_, value)| value.trim()).to_owned()
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok();
    let output = output.filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or_else(|| UNKNOWN.to_owned(), |text| text.trim().to_owned())
}

fn file_system(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, point) = (fields.next()?, fields.next()?);
        let (kind, options) = (fields.next()?, fields.next()?);
        dir.starts_with(point).then(|| (point.len(), format!("{kind} on {device} ({options})")))
    });
    // Among equal lengths, `max_by_key` returns the last: the topmost mount.
    mounts.max_by_key(|(len, _)| *len).map_or_else(|| UNKNOWN.to_owned(), |(_, mount)| mount)
}
