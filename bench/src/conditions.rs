//! The conditions of a run: machine, software and load.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use serde::Serialize;

use crate::table::markdown;

#[derive(Debug, Serialize)]
pub(crate) struct Conditions(Vec<(&'static str, String)>);

impl Conditions {
    pub(crate) fn observe(dir: &Path, quick: bool) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let mut conditions = vec![
            ("date", dq::Timestamp::from(SystemTime::now()).to_string()),
            ("revision", output("git", &["describe", "--always", "--dirty"])),
            ("CPU", format!("{}, {cores} cores", field("/proc/cpuinfo", "model name"))),
            ("memory", field("/proc/meminfo", "MemTotal")),
            ("kernel", read("/proc/sys/kernel/osrelease")),
            ("file system", file_system(dir)),
            ("compiler", format!("{}, release profile", output("rustc", &["--version"]))),
            ("SQLite", dq::sqlite::rusqlite::version().to_owned()),
            ("load average", read("/proc/loadavg")),
        ];
        if quick {
            conditions.push(("QUICK", "small sizes; the figures are meaningless".to_owned()));
        }
        Self(conditions)
    }

    /// Adds the measured servers and their settings, and the load at the end.
    pub(crate) fn finish(&mut self, servers: BTreeSet<String>) {
        self.0.extend(servers.into_iter().map(|server| ("server", server)));
        self.0.push(("… at the end", read("/proc/loadavg")));
    }

    pub(crate) fn to_markdown(&self) -> String {
        let head = ["condition", ""].map(str::to_owned);
        markdown(&head, self.0.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]))
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name:<12} {value}"))
    }
}

const UNKNOWN: &str = "unknown";

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| UNKNOWN.to_owned(), |text| text.trim().to_owned())
}

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
