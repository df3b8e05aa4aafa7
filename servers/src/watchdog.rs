//! Sees to it that nothing is left of a server when the process that started it is gone, however
//! it went: by a signal, by `exit`, which drops no statics, or by the end of `main`.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Reads process ids, the last of which counts. The end of its input is the end of whoever held the
/// other end: then the process, with all of its group, and the directory go. Removing is tried
/// again because a process that is being killed may still be writing.
const SCRIPT: &str = r#"
server=
while read -r line; do server=$line; done
[ -z "$server" ] || kill -s KILL -- "-$server" 2>/dev/null
for pause in 0 0.1 1 5; do
    sleep $pause
    rm -rf "$1" 2>/dev/null && break
done
"#;

/// A directory and at most one process that are gone when this is, or when our process is.
#[derive(Debug)]
pub(crate) struct Watchdog {
    dir: PathBuf,
    shell: Child,
}

impl Watchdog {
    /// Makes the directory and watches over it.
    pub(crate) fn start(prefix: &str) -> Self {
        let dir = tempfile::Builder::new().prefix(prefix).tempdir();
        let dir = dir.unwrap_or_else(|error| panic!("no temporary directory: {error}")).keep();
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C at a terminal is meant for the tests; the watchdog must outlive them.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("sh cannot be started: {error}"));
        Self { dir, shell }
    }

    /// The directory, which is empty at first.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// From now on, the process with this id, the leader of its group, goes with us. Once this has
    /// returned, that holds even if we are killed at once: the id is in the pipe.
    pub(crate) fn watch(&self, process: u32) {
        self.tell(&process.to_string());
    }

    /// The process is gone, and its id may soon be that of another.
    pub(crate) fn forget(&self) {
        self.tell("");
    }

    fn tell(&self, line: &str) {
        let pipe = self.shell.stdin.as_ref();
        let told = pipe.map(|mut pipe| pipe.write_all(format!("{line}\n").as_bytes()));
        assert!(matches!(told, Some(Ok(()))), "the watchdog of {} is gone", self.dir.display());
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // `wait` closes the pipe first.
        let _ = self.shell.wait();
    }
}
