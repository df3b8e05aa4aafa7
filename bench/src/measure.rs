//! A measurement's settings, clocks, statistics, runtime and child processes.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) dir: PathBuf,
    pub(crate) quick: bool,
}

impl Plan {
    pub(crate) fn full_or_quick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

pub(crate) const CHILD: &str = "child";

pub(crate) fn child_process(task: &str, arguments: &[&str]) -> Command {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(this);
    command.args([CHILD, task]).args(arguments);
    command
}

pub(crate) static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn progress(what: std::fmt::Arguments<'_>) {
    eprintln!("[{:6.1} s] {what}", START.elapsed().as_secs_f64());
}

pub(crate) fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

/// CPU time of this thread so far. Unlike wall-clock time, it stands still while another process
/// has the core.
pub(crate) fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("CPU time is never negative")
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { cpu: process_cpu(), wall: Instant::now() }
    }

    pub(crate) fn wall(&self) -> Duration {
        self.wall.elapsed()
    }

    pub(crate) fn cpu(&self) -> Duration {
        process_cpu() - self.cpu
    }
}

/// Resident memory in bytes of a process, by id or `self`. Assumes 4 KiB pages; zero where `/proc`
/// is missing.
pub(crate) fn resident(process: &str) -> u64 {
    const PAGE: u64 = 4_096;
    let statm = fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE
}

pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn medians<const N: usize>(
    turns: usize,
    turn: impl FnMut(usize) -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    let turns: Vec<[f64; N]> = (0..turns).map(turn).collect::<Result<_>>()?;
    Ok(std::array::from_fn(|value| median(turns.iter().map(|turn| turn[value]).collect())))
}

#[derive(Debug)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The quantile in milliseconds: `share` of the durations do not exceed it.
    pub(crate) fn millis_at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let place = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(place.saturating_sub(1).min(last)).map_or(f64::NAN, |time| millis(*time))
    }
}

/// A runtime with `workers` threads. With zero, it runs on the calling thread.
pub(crate) fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    builder.enable_all().build().expect("a runtime can be made")
}

/// Waits for a future on a runtime with two threads, as in a program on a small server.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| runtime(2));
    RUNTIME.block_on(future)
}

/// Same, in a task, as in an application: on this thread, each reply would also wake this thread.
pub(crate) fn in_task<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    block_on(async { tokio::spawn(future).await? })
}
