//! The processes sharing a store during a run, each with its own log.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{mem, thread};

use crate::run::{Result, wait_with_limit};

/// A client program with the arguments `URL LOG NAME MODE`. It stops when its standard input ends.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) environment: Vec<(&'static str, String)>,
}

pub(crate) const PRODUCE: &str = "produce";
pub(crate) const DRAIN: &str = "drain";
/// Like [`PRODUCE`], with more jobs. The log holds the store's job count.
pub(crate) const SOAK: &str = "soak";

/// How long a process may take to stop or to drain the store, on a slow machine.
const STOP_LIMIT: Duration = Duration::from_secs(180);

/// The processes that did not end well, by name.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// Killed or failed processes: their last settlements may be lost.
    pub(crate) crashed: Vec<String>,
    /// Errors of processes that nobody killed.
    pub(crate) failures: Vec<String>,
}

#[derive(Debug)]
struct Process {
    program: &'static str,
    name: String,
    child: Child,
}

/// The processes sharing a store, by index in the order of their starts. Dropping kills them.
#[derive(Debug)]
pub(crate) struct Crew {
    /// For the processes, by turns.
    urls: Vec<String>,
    /// The directory for the processes' logs.
    dir: PathBuf,
    log_extension: &'static str,
    running: Vec<Process>,
    started: usize,
    ends: Ends,
}

impl Crew {
    pub(crate) fn new(urls: Vec<String>, dir: &Path, log_extension: &'static str) -> Self {
        let (dir, running) = (dir.to_owned(), Vec::new());
        Self { urls, dir, log_extension, running, started: 0, ends: Ends::default() }
    }

    /// Starts a process and returns its index. Its name is the program's with a number.
    pub(crate) fn start(&mut self, program: &Program, mode: &str) -> Result<usize> {
        self.started += 1;
        let name = format!("{}{}", program.name, self.started);
        let failed = |error: std::io::Error| format!("{name} cannot be started: {error}");
        let child = Command::new(&program.path)
            .arg(&self.urls[self.started % self.urls.len()])
            .arg(self.log(&name))
            .args([name.as_str(), mode])
            .envs(program.environment.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .stderr(File::create(self.stderr(&name)).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        self.running.push(Process { program: program.name, name, child });
        Ok(self.running.len() - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    fn first_of(&self, program: &Program) -> Option<usize> {
        self.running.iter().position(|process| process.program == program.name)
    }

    /// Returns the ids and logs of a program's running processes.
    pub(crate) fn processes(&self, program: &Program) -> Vec<(u32, PathBuf)> {
        let own = self.running.iter().filter(|process| process.program == program.name);
        own.map(|process| (process.child.id(), self.log(&process.name))).collect()
    }

    /// Sends a signal, named as for `kill -s`.
    pub(crate) fn signal(&self, index: usize, signal: &str) {
        let id = self.running[index].child.id().to_string();
        // Uses the shell's builtin because not every machine has `kill`. It fails only if the
        // process has ended, which `stop_process` reports.
        let _ = Command::new("sh")
            .args(["-c", r#"kill -s "$1" -- "$2""#, "kill", signal, &id])
            .stderr(Stdio::null())
            .status();
    }

    /// Waits up to a minute until a process has begun its log. From then on it handles signals;
    /// it has no log while it cannot connect.
    pub(crate) fn await_log(&self, index: usize) {
        let log = self.log(&self.running[index].name);
        let begin = Instant::now();
        while !log.exists() && begin.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills a process. Records a failure if it has already ended with an error.
    pub(crate) fn kill(&mut self, index: usize) {
        let mut process = self.running.remove(index);
        if let Ok(None) = process.child.try_wait() {
            kill(&mut process.child);
            self.ends.crashed.push(process.name);
        } else {
            self.stop_process(process);
        }
    }

    pub(crate) fn kill_oldest(&mut self, program: &Program) {
        if let Some(index) = self.first_of(program) {
            self.kill(index);
        }
    }

    pub(crate) fn stop(&mut self, index: usize) {
        let process = self.running.remove(index);
        self.stop_process(process);
    }

    pub(crate) fn stop_all(&mut self, program: &Program) {
        while let Some(index) = self.first_of(program) {
            self.stop(index);
        }
    }

    /// Waits for the last processes, which drain the store.
    pub(crate) fn finish(mut self) -> Ends {
        while !self.running.is_empty() {
            self.stop(0);
        }
        mem::take(&mut self.ends)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.{}", self.log_extension))
    }

    fn stderr(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.stderr"))
    }

    /// Closes standard input, which tells a producer to stop, and waits.
    fn stop_process(&mut self, Process { name, mut child, .. }: Process) {
        drop(child.stdin.take());
        let failure = match wait_with_limit(&name, &mut child, STOP_LIMIT) {
            Ok(status) if status.success() => return,
            Ok(status) => format!("{name} ended with {status}"),
            Err(failure) => failure,
        };
        let stderr = fs::read_to_string(self.stderr(&name)).unwrap_or_default();
        let failure = format!("{failure}\n{}", stderr.trim_end());
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
