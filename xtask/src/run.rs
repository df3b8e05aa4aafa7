//! Steps: one command each, announced and timed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What a command of xtask comes to; the error is for people.
pub(crate) type Done<T = ()> = Result<T, String>;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The cargo that runs us, in the root of the workspace.
pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Runs one step with its output on the terminal.
pub(crate) fn step(name: &str, command: &mut Command) -> Done {
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

/// Runs a command for what it prints.
pub(crate) fn output(name: &str, command: &mut Command) -> Done<String> {
    let output = command.output().map_err(|error| format!("{name} cannot be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed ({}):\n{said}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{name} printed no text: {error}"))
}
