//! A server's process: started, killed, stopped, frozen, started again, and never left behind.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::program::Program;
use crate::watchdog::Watchdog;

/// How long a server may take to start or to stop.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a word before it becomes the server, so that the watchdog knows the process before
/// there is a server. If we die before the word, so does this.
const BECOME: &str = r#"read -r word && exec "$@" </dev/null"#;

/// One server program with its directory. At most one process of it runs at a time.
#[derive(Debug)]
pub(crate) struct Process {
    program: Program,
    arguments: Vec<OsString>,
    running: Mutex<Option<Child>>,
    watchdog: Watchdog,
}

impl Process {
    /// Nothing is started yet. The process will run in the watchdog's directory.
    pub(crate) fn new(watchdog: Watchdog, program: Program, arguments: Vec<OsString>) -> Self {
        Self { program, arguments, running: Mutex::new(None), watchdog }
    }

    /// Starts the program, which must not run already.
    pub(crate) fn start(&self) {
        let name = self.program.path.display();
        let mut running = self.running();
        assert!(running.is_none(), "{name} runs already");
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.unwrap_or_else(|error| panic!("no file for the log of {name}: {error}"));
        let mut command = Command::new("sh");
        self.program.prepare(&mut command);
        command.args(["-c", BECOME, "server"]).arg(&self.program.path).args(&self.arguments);
        command.current_dir(self.watchdog.dir());
        command.stdin(Stdio::piped());
        command.stdout(log.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)).stderr(log);
        // A group of its own: signals reach its children too, and Ctrl-C does not reach it.
        command.process_group(0);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        self.watchdog.watch(child.id());
        let word = child.stdin.take().map(|mut pipe| pipe.write_all(b"go\n"));
        *running = Some(child);
        assert!(matches!(word, Some(Ok(()))), "{name} ended before it began");
    }

    /// Ends the process like a crash, with all that it has started. Does nothing if it does not
    /// run.
    pub(crate) fn kill(&self) {
        if let Some(child) = &mut *self.running() {
            send("KILL", child);
        }
        self.reap();
    }

    /// Ends the process in the orderly way; like a crash if that takes too long.
    pub(crate) fn stop(&self) {
        if let Some(child) = &mut *self.running() {
            send("CONT", child);
            send("TERM", child);
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && ended(child).is_none() {
                thread::sleep(Duration::from_millis(5));
            }
            if ended(child).is_none() {
                send("KILL", child);
            }
        }
        self.reap();
    }

    /// Sends a signal, named as by `kill -s`, to the process and its children.
    pub(crate) fn signal(&self, name: &str) {
        match &mut *self.running() {
            Some(child) => send(name, child),
            None => panic!("{} does not run", self.program.path.display()),
        }
    }

    /// The id of the process, if it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.running().as_ref().map(Child::id)
    }

    /// Whether the process has ended by itself.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.running().as_mut().and_then(ended)
    }

    /// What the program has printed so far.
    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// The process's own directory.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.watchdog.dir()
    }

    /// Waits until the process is gone.
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

/// To the group of the process. Not once it has ended: its id may be that of another by then.
fn send(signal: &str, child: &mut Child) {
    if ended(child).is_some() {
        return;
    }
    let group = format!("-{}", child.id());
    let script = r#"kill -s "$1" -- "$2""#;
    // The shell's own `kill`: not every machine has the program.
    let sent = Command::new("sh").args(["-c", script, "kill", signal, &group]).status();
    assert!(sent.is_ok_and(|status| status.success()), "signal {signal} could not be sent");
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().unwrap_or_else(|error| panic!("a server's process is lost: {error}"))
}
