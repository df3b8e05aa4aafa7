//! An example as a process: output lines, exit status, signals.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time limit for a line, a state or an exit: longer than any takes on a busy machine.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(180);

/// A running example, or another program by its path. Dropping it kills the process.
pub(crate) struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    pub(crate) fn start(example: impl AsRef<Path>, dir: &Path, arguments: &[&str]) -> Self {
        let mut command = command(example, dir, arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the example starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        // As output of this thread's test, shown if it fails.
        std::thread::spawn(move || {
            BufReader::new(stderr)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| eprintln!("{line}"));
        });
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                // Keeps reading after the test has ended, so the example does not block.
                let _ = line.map(|line| sender.send(line));
            }
        });
        Self { child, lines }
    }

    /// Waits for the next line; `None` if the example has ended.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(MAX_WAIT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the example prints no further line"),
        }
    }

    pub(crate) fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the example can be killed");
        self.child.wait().expect("the example has ended");
    }

    /// Sends a signal by name, such as `INT`, once the example handles it.
    pub(crate) fn signal(&self, name: &str) {
        self.wait_for_signal_handler(name);
        let pid = self.child.id().to_string();
        // The shell's builtin: not every machine has the `kill` program.
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &pid]);
        assert!(shell.status().expect("the shell runs").success());
    }

    /// Waits, because the signal kills the example until its handler is installed.
    fn wait_for_signal_handler(&self, name: &str) {
        let signal = match name {
            "INT" => 2,
            "TERM" => 15,
            other => panic!("unknown signal {other}"),
        };
        let start = Instant::now();
        while self.caught_signals() & (1 << (signal - 1)) == 0 {
            assert!(start.elapsed() < MAX_WAIT, "the example does not handle SIG{name}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The mask of the signals that the example handles.
    fn caught_signals(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the example has a status");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(caught.expect("a line of signals").trim(), 16).expect("a mask")
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < MAX_WAIT {
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
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn output(example: impl AsRef<Path>, dir: &Path, arguments: &[&str]) -> Output {
    command(example, dir, arguments).output().expect("the example starts")
}

/// Runs an example without options, to its end. Returns its lines.
pub(crate) fn lines(example: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let output = output(example, dir.path(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(str::to_owned).collect()
}

/// The rest of each line with this beginning.
pub(crate) fn about<'a>(lines: &'a [String], words: &str) -> Vec<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(words)).collect()
}

fn command(example: impl AsRef<Path>, dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(path(example.as_ref()));
    command.current_dir(dir).args(arguments).stdin(Stdio::null());
    command.env("RUST_LOG", "error");
    command
}

/// Cargo builds tests in `target/PROFILE/deps` and examples in `target/PROFILE/examples`. An
/// absolute path stays as it is, apart from the suffix.
fn path(example: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own path");
    let profile = test.ancestors().nth(2).expect("tests are in target/PROFILE/deps");
    let mut path = profile.join("examples").join(example);
    path.as_mut_os_string().push(std::env::consts::EXE_SUFFIX);
    assert!(
        path.is_file(),
        "{} is not built; run `cargo build --workspace --examples`",
        path.display()
    );
    path
}
