//! The workspace's directories and files, and external commands, such as cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The error is a message for the user.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The cargo that runs xtask, started in the workspace root. Leaves out the variables that cargo
/// has set for xtask: some build scripts rerun when these change.
pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Like [`cargo`], for the workspace in `dir`, with this one's profiles and target directory, so
/// that cargo does not recompile all dependencies.
pub(crate) fn cargo_in<'a>(dir: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = cargo(arguments);
    command.arg("--config").arg(root().join(".cargo/config.toml"));
    command.current_dir(dir).env("CARGO_TARGET_DIR", target_dir());
    command
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// Writes a file, and makes its directory.
pub(crate) fn write(path: &Path, text: &str) -> Result {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

pub(crate) fn new_run_dir(topic: &str, name: &str) -> Result<PathBuf> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let dir = root().join("target").join(topic).join(format!("{name}-{time}"));
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Runs a command that prints for the user, and says how long it took.
pub(crate) fn step(name: &str, command: &mut Command) -> Result {
    println!("── {name}");
    let start = Instant::now();
    let status = command.status().map_err(|error| format!("{name} cannot be started: {error}"))?;
    let took = start.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{name} failed after {took:.1} s ({status})"));
    }
    println!("── {name}: ok, {took:.1} s\n");
    Ok(())
}

/// Waits for a process to end; kills it after `limit`, which is an error.
pub(crate) fn wait_with_limit(
    name: &str,
    child: &mut Child,
    limit: Duration,
) -> Result<ExitStatus> {
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    Err(format!("{name} still ran after {} s", limit.as_secs()))
}

pub(crate) fn output(name: &str, command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| format!("{name} cannot be started: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed ({}):\n{stderr}", output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| format!("{name} printed invalid UTF-8: {error}"))
}

/// Does tasks in several threads, even after a failure. The error has a line for each failed task.
pub(crate) fn in_lanes<T: Sync>(
    lanes: usize,
    tasks: &[T],
    run: impl Fn(&T) -> Result + Sync,
) -> Result {
    let waiting = Mutex::new(tasks.iter());
    let next = || waiting.lock().ok()?.next();
    let lane = || std::iter::from_fn(next).filter_map(|task| run(task).err()).collect();
    let failed: Vec<String> = thread::scope(|scope| {
        let lanes: Vec<ScopedJoinHandle<'_, Vec<String>>> =
            (0..lanes).map(|_| scope.spawn(lane)).collect();
        let panicked = |_| vec!["a task has panicked; the message is above".to_owned()];
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_else(panicked)).collect()
    });
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

pub(crate) type Task<'a> = &'a (dyn Fn() -> Result + Sync);
