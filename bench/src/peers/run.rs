//! Runs a program to its end.

use std::process::Command;

use crate::measure::Result;

/// Returns what the program has printed. An error has its output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{name} does not start: {error}"))?;
    if !output.status.success() {
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return Err(format!("{name} failed ({}):\n{text}{errors}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
