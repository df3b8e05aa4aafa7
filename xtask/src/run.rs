//! Runs external commands as timed steps.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Result of an xtask command. The error is a message for the user.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The cargo that runs xtask, in the root of the workspace.
pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Runs a command with its output on the terminal.
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

/// Runs a command and returns its output.
pub(crate) fn output(name: &str, command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| format!("{name} cannot be started: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed ({}):\n{stderr}", output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| format!("{name} printed invalid UTF-8: {error}"))
}
