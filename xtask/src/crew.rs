//! The processes sharing a store during a run, each with its own log.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{mem, thread};

use crate::run::Result;

/// A client program with the arguments `URL LOG NAME MODE`. It stops when its standard input ends.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// The client's modes.
pub(crate) const PRODUCE: &str = "produce";
pub(crate) const DRAIN: &str = "drain";
/// Like [`PRODUCE`], with more jobs. The log holds the store's job count.
pub(crate) const SOAK: &str = "soak";

/// How long a process may take to stop or to drain the store, on a slow machine.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// Killed or failed processes: their last settlements may be lost.
    pub(crate) crashed: Vec<String>,
    /// Errors from processes nobody killed.
    pub(crate) failures: Vec<String>,
}

#[derive(Debug)]
struct Process {
    program: &'static str,
    name: String,
    child: Child,
}

/// The processes sharing a store. Dropping the crew kills the running ones.
#[derive(Debug)]
pub(crate) struct Crew {
    url: String,
    dir: PathBuf,
    extension: &'static str,
    running: Vec<Process>,
    started: usize,
    ends: Ends,
}

impl Crew {
    pub(crate) fn new(url: &str, dir: &Path, extension: &'static str) -> Self {
        let (url, dir) = (url.to_owned(), dir.to_owned());
        Self { url, dir, extension, running: Vec::new(), started: 0, ends: Ends::default() }
    }

    pub(crate) fn start(&mut self, program: &Program, mode: &str) -> Result {
        self.started += 1;
        let name = format!("{}{}", program.name, self.started);
        let child = Command::new(&program.path)
            .arg(&self.url)
            .arg(self.log(&name))
            .args([name.as_str(), mode])
            .envs(program.environment.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        self.running.push(Process { program: program.name, name, child });
        Ok(())
    }

    pub(crate) fn kill_one(&mut self, program: &Program) {
        if let Some(at) = self.running.iter().position(|of| of.program == program.name) {
            self.kill(at);
        }
    }

    /// Sends a signal, named as for `kill -s`, to a running process. `number` counts modulo the
    /// running processes.
    pub(crate) fn signal(&self, number: usize, signal: &str) {
        if let Some(process) = self.nth(number).map(|at| &self.running[at]) {
            let id = process.child.id().to_string();
            // Uses the shell's builtin because not every machine has `kill`. It fails only if the
            // process has ended, which `stop` reports.
            let _ = Command::new("sh")
                .args(["-c", r#"kill -s "$1" -- "$2""#, "kill", signal, &id])
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Waits up to ten seconds until a running process has begun its log. From then on it handles
    /// signals; it has no log while it cannot connect.
    pub(crate) fn await_log(&self, number: usize) {
        let Some(process) = self.nth(number).map(|at| &self.running[at]) else { return };
        let log = self.log(&process.name);
        let begin = Instant::now();
        while !log.exists() && begin.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn processes(&self, program: &Program) -> Vec<(u32, PathBuf)> {
        let own = self.running.iter().filter(|of| of.program == program.name);
        own.map(|process| (process.child.id(), self.log(&process.name))).collect()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.{}", self.extension))
    }

    /// For `number`, see [`signal`](Self::signal).
    pub(crate) fn kill_nth(&mut self, number: usize) {
        if let Some(at) = self.nth(number) {
            self.kill(at);
        }
    }

    /// Waits for a process told to stop; for `number`, see [`signal`](Self::signal).
    pub(crate) fn await_nth(&mut self, number: usize) {
        if let Some(at) = self.nth(number) {
            let process = self.running.remove(at);
            self.stop(process);
        }
    }

    /// The number of the process started last.
    pub(crate) fn last(&self) -> usize {
        self.running.len().saturating_sub(1)
    }

    fn nth(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.running.len())
    }

    /// Records a failure if the process has already ended with an error.
    fn kill(&mut self, at: usize) {
        let mut process = self.running.remove(at);
        if let Ok(None) = process.child.try_wait() {
            kill(&mut process.child);
            self.ends.crashed.push(process.name);
        } else {
            self.stop(process);
        }
    }

    pub(crate) fn stop_all(&mut self, program: &Program) {
        let (stopping, others): (Vec<_>, _) =
            mem::take(&mut self.running).into_iter().partition(|of| of.program == program.name);
        self.running = others;
        for process in stopping {
            self.stop(process);
        }
    }

    /// Waits until the last processes, which drain the store, have ended.
    pub(crate) fn finish(mut self) -> Ends {
        for process in mem::take(&mut self.running) {
            self.stop(process);
        }
        mem::take(&mut self.ends)
    }

    /// Closes standard input, which tells a producer to stop, and waits. Kills the process after
    /// [`LIMIT`].
    fn stop(&mut self, Process { name, mut child, .. }: Process) {
        drop(child.stdin.take());
        let start = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && start.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(20));
        }
        let failure = match child.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => format!("{name} ended with {status}"),
            Ok(None) => format!("{name} still ran {} s after it was to stop", LIMIT.as_secs()),
            Err(error) => format!("{name}: {error}"),
        };
        kill(&mut child);
        self.ends.failures.push(failure);
        self.ends.crashed.push(name);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for process in &mut self.running {
            kill(&mut process.child);
        }
    }
}

/// Both calls fail only if the process has already ended.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
