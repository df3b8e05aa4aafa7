//! An example as a process: its output by the line, its end, and the signals that end it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine; reached only when a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running example; killed when dropped.
pub(crate) struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    /// Starts an example in a directory of the test's own.
    pub(crate) fn start(example: &str, dir: &Path, arguments: &[&str]) -> Self {
        let mut command = command(example, dir, arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the example starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                // The test may have stopped listening; the example must not be blocked by that.
                let _ = line.map(|line| sender.send(line));
            }
        });
        Self { child, lines }
    }

    /// The next line; `None` when there are no more.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the example prints nothing more"),
        }
    }

    /// All lines up to the end of the output.
    pub(crate) fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    /// `kill -9`: no warning, no last words.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the example can be killed");
        self.child.wait().expect("the example has ended");
    }

    /// A signal by name, such as `TERM`, as soon as the example listens for it.
    #[cfg(unix)]
    pub(crate) fn signal(&self, name: &str) {
        self.wait_until_it_listens_for(name);
        let pid = self.child.id().to_string();
        // The shell's own `kill`: not every machine has the program.
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &pid]);
        assert!(shell.status().expect("the shell runs").success());
    }

    /// An example says what it does just before it listens, and until then a signal would kill it.
    #[cfg(target_os = "linux")]
    fn wait_until_it_listens_for(&self, name: &str) {
        let signal = match name {
            "INT" => 2,
            "TERM" => 15,
            other => panic!("{other} has no number here"),
        };
        let start = Instant::now();
        while self.caught_signals() & (1 << (signal - 1)) == 0 {
            assert!(start.elapsed() < PATIENCE, "the example does not listen for SIG{name}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The signals for which it has a handler, a bit each.
    #[cfg(target_os = "linux")]
    fn caught_signals(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the example has a status");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(caught.expect("a line of signals").trim(), 16).expect("a mask")
    }

    /// Elsewhere nobody can tell, so it gets plenty of time.
    #[cfg(all(unix, not(target_os = "linux")))]
    fn wait_until_it_listens_for(&self, _name: &str) {
        std::thread::sleep(Duration::from_secs(1));
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("the example can be waited for") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the example does not end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail if it has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs an example to its end, for what it prints.
pub(crate) fn output(example: &str, dir: &Path, arguments: &[&str]) -> Output {
    command(example, dir, arguments).output().expect("the example starts")
}

fn command(example: &str, dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(path(example));
    command.current_dir(dir).args(arguments).stdin(Stdio::null());
    command.env_remove("ORDER_TIMEOUT").env("RUST_LOG", "error");
    command
}

/// Where `cargo test` puts examples: beside the directory of this test.
fn path(example: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    let profile = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
    let path = profile.join("examples").join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.is_file(), "{} is not built; run `cargo build --examples`", path.display());
    path
}
