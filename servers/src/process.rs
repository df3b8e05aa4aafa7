//! A server's process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::Program;
use crate::watchdog::{SIGNAL_FUNCTION, Watchdog};

/// Maximum time for a server to start, stop or reply: a node with hundreds of quorum queues needs
/// minutes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Waits for a line before it executes the server, so that the watchdog knows the process id first.
/// If this process dies earlier, the shell reads end-of-file and exits.
const WAIT_AND_EXEC: &str = r#"read -r line && exec "$@" </dev/null"#;

/// Repeats `attempt` until it succeeds. Panics with its error after [`TIMEOUT`].
#[track_caller]
pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(reason) if Instant::now() > deadline => panic!("{reason}"),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

const ATTEMPTS: usize = 10;

/// The operating system's error for a port that is taken, as Erlang and all others write it.
const PORT_IS_TAKEN: [&str; 2] = ["eaddrinuse", "already in use"];

/// Starts a server. `try_start` picks a free port, which another process may take before the
/// server does; then it is called again. Panics if it fails otherwise, or too often.
pub(crate) fn start_on_free_port<T>(
    name: &str,
    mut try_start: impl FnMut() -> Result<T, String>,
) -> T {
    let is_port_taken = |reason: &String| PORT_IS_TAKEN.iter().any(|text| reason.contains(text));
    for _attempt in 1..ATTEMPTS {
        match try_start() {
            Ok(server) => return server,
            Err(reason) if is_port_taken(&reason) => {}
            Err(reason) => panic!("{name} does not start: {reason}"),
        }
    }
    try_start().unwrap_or_else(|reason| panic!("{name} does not start: {reason}"))
}

/// A server program with its directory. It runs at most once at a time.
#[derive(Debug)]
pub(crate) struct Process {
    program: Program,
    arguments: Vec<OsString>,
    /// For an orderly stop.
    stop_signal: &'static str,
    /// Set from start to kill or stop, even if the process has exited by itself.
    running: Mutex<Option<Child>>,
    watchdog: Watchdog,
}

impl Process {
    pub(crate) fn new(watchdog: Watchdog, program: Program, arguments: Vec<OsString>) -> Self {
        Self { program, arguments, stop_signal: "TERM", running: Mutex::new(None), watchdog }
    }

    pub(crate) fn stopped_by(mut self, stop_signal: &'static str) -> Self {
        self.stop_signal = stop_signal;
        self
    }

    /// Panics unless the program was never started, or was killed or stopped since.
    pub(crate) fn start(&self) {
        let name = self.program.path.display();
        let mut running = self.running();
        assert!(running.is_none(), "{name} is already running");
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.unwrap_or_else(|error| panic!("no file for the log of {name}: {error}"));
        let mut command = Command::new("sh");
        self.program.prepare(&mut command);
        command
            .args(["-c", WAIT_AND_EXEC, "server"])
            .args(self.program.command_line())
            .args(&self.arguments);
        command.current_dir(self.watchdog.dir());
        command.stdin(Stdio::piped());
        command.stdout(log.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)).stderr(log);
        // Its own process group: signals reach its children too, and Ctrl-C does not reach it.
        command.process_group(0);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        self.watchdog.watch(child.id());
        let started = child.stdin.take().map(|mut pipe| pipe.write_all(b"go\n"));
        *running = Some(child);
        assert!(matches!(started, Some(Ok(()))), "{name} exited before it was started");
    }

    pub(crate) fn kill(&self) {
        let mut children = Vec::new();
        if let Some(child) = &mut *self.running() {
            children = children_of(child.id());
            send("KILL", child);
        }
        self.reap();
        // PostgreSQL's children hold its shared memory until they have exited.
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline && children.iter().any(|id| is_running(id)) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends the stop signal, and kills the process after [`TIMEOUT`].
    pub(crate) fn stop(&self) {
        if let Some(child) = &mut *self.running() {
            // A frozen process receives the signal only when resumed.
            send("CONT", child);
            send(self.stop_signal, child);
            let deadline = Instant::now() + TIMEOUT;
            while Instant::now() < deadline && exit_status(child).is_none() {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    /// Signals the process and its children; `name` is as for `kill -s`.
    pub(crate) fn signal(&self, name: &str) {
        match &mut *self.running() {
            Some(child) => send(name, child),
            None => panic!("{} is not running", self.program.path.display()),
        }
    }

    /// A process that exited by itself keeps its id until kill or stop.
    pub(crate) fn id(&self) -> Option<u32> {
        self.running().as_ref().map(Child::id)
    }

    /// The status if the process exited by itself; `None` while it runs and after kill or stop.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.running().as_mut().and_then(exit_status)
    }

    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn dir(&self) -> &std::path::Path {
        self.watchdog.dir()
    }

    pub(crate) fn log_tail(&self) -> String {
        const LINES: usize = 150;
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// Waits up to [`TIMEOUT`]. The error has the reason and the log's end. An exited process then
    /// counts as killed.
    pub(crate) fn wait_until_ready(
        &self,
        mut probe: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let Err(reason) = probe() else {
                return Ok(());
            };
            if let Some(status) = self.exit_status() {
                self.kill();
                return Err(format!("it exited ({status}) with the log:\n{}", self.log_tail()));
            }
            if Instant::now() > deadline {
                let seconds = TIMEOUT.as_secs();
                return Err(format!("{reason} after {seconds} s; log:\n{}", self.log_tail()));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn reap(&self) {
        if let Some(mut child) = self.running().take() {
            let _ = child.wait();
            self.watchdog.forget();
        }
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.watchdog.dir().join("log")
    }

    fn running(&self) -> MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Does nothing if the process has exited, because another one may have its id.
fn send(signal: &str, child: &mut Child) {
    if exit_status(child).is_some() {
        return;
    }
    let script = format!(r#"{SIGNAL_FUNCTION} send "$1" "$2""#);
    // The shell's builtin: not every machine has the program `kill`.
    let id = child.id().to_string();
    let sent = Command::new("sh").args(["-c", &script, "send", signal, &id]).status();
    assert!(sent.is_ok_and(|status| status.success()), "signal {signal} could not be sent");
}

fn exit_status(child: &mut Child) -> Option<ExitStatus> {
    child
        .try_wait()
        .unwrap_or_else(|error| panic!("the state of a server process cannot be read: {error}"))
}

/// Empty where the kernel does not tell.
fn children_of(id: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    children.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// A process that has exited may stay for long, because not every container's first process waits
/// for it.
fn is_running(id: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state follows the name, which may contain a parenthesis.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

macro_rules! process_control {
    () => {
        /// Returns the server's own directory, with its data and its `log`.
        pub fn dir(&self) -> &std::path::Path {
            self.process.dir()
        }

        /// Returns the process id; `None` after [`kill`](Self::kill) or [`stop`](Self::stop).
        pub fn process_id(&self) -> Option<u32> {
            self.process.id()
        }

        /// Kills the server (SIGKILL), to simulate a crash.
        pub fn kill(&self) {
            self.process.kill();
        }

        /// Stops the server in an orderly way.
        pub fn stop(&self) {
            self.process.stop();
        }

        /// Suspends the server (SIGSTOP): connections stay open, but it does not reply.
        pub fn freeze(&self) {
            self.process.signal("STOP");
        }

        /// Resumes a frozen server (SIGCONT).
        pub fn thaw(&self) {
            self.process.signal("CONT");
        }

        /// Returns the server's log so far.
        pub fn log(&self) -> String {
            self.process.log()
        }
    };
}

pub(crate) use process_control;
