//! Removes a server and its directory when its process ends: by a signal, by `exit` (which drops no
//! statics), or when `main` ends.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A shell function for a process group, given by its leader. The signals that apply to a whole
/// server also reach its children's groups: each child of PostgreSQL leads its own. A stopped
/// server starts no more children.
pub(crate) const SIGNAL_FUNCTION: &str = r#"
send() {
    children=
    case $1 in KILL | STOP) kill -s STOP -- "-$2" ;; esac
    case $1 in KILL | STOP | CONT) read -r children <"/proc/$2/task/$2/children" ;; esac
    for group in $children "$2"; do kill -s "$1" -- "-$group"; done
} 2>/dev/null
"#;

/// Follows [`SIGNAL_FUNCTION`]. Each line replaces the process group to kill; an empty line means
/// none. When the input ends (this process has ended), the script kills the group and removes the
/// directory `$1`. It retries, because a dying process may still write.
const SCRIPT: &str = r#"
server=
while read -r line; do server=$line; done
[ -z "$server" ] || send KILL "$server"
for pause in 0 0.1 1 5; do
    sleep $pause
    rm -rf "$1" 2>/dev/null && break
done
"#;

/// A directory and at most one process, both removed on drop or when this process ends.
#[derive(Debug)]
pub(crate) struct Watchdog {
    dir: PathBuf,
    shell: Child,
}

impl Watchdog {
    pub(crate) fn start(prefix: &str) -> Self {
        let dir = tempfile::Builder::new().prefix(prefix).tempdir();
        let dir = dir.unwrap_or_else(|error| panic!("no temporary directory: {error}")).keep();
        let shell = Command::new("sh")
            .args(["-c", &format!("{SIGNAL_FUNCTION}{SCRIPT}"), "watchdog"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal must not end the watchdog, which outlives the tests.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("sh cannot be started: {error}"));
        Self { dir, shell }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Registers a process group. On return the id is in the pipe, so the group is killed even if
    /// this process ends at once.
    pub(crate) fn watch(&self, process: u32) {
        self.send(&process.to_string());
    }

    /// Call this when the process has exited, because another one may get its id.
    pub(crate) fn forget(&self) {
        self.send("");
    }

    fn send(&self, line: &str) {
        let pipe = self.shell.stdin.as_ref();
        let written = pipe.map(|mut pipe| pipe.write_all(format!("{line}\n").as_bytes()));
        assert!(
            matches!(written, Some(Ok(()))),
            "the watchdog of {} has exited",
            self.dir.display()
        );
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // `wait` first closes the pipe, which ends the script's input.
        let _ = self.shell.wait();
    }
}
