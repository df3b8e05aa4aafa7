//! npm packages. Each file must match a known hash.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::once::{create_once, directory_name};
use crate::program::unpacked_programs;

const PACKAGE: &str = include_str!("../npm/package.json");
const LOCK: &str = include_str!("../npm/package-lock.json");

/// Returns the directory of the npm packages that tests use, the PostgreSQL driver `pg`, for `NODE_PATH`.
/// Downloads them if they are missing.
#[must_use]
pub fn node_packages() -> PathBuf {
    install().unwrap_or_else(|error| panic!("{error}\nrun `cargo xtask servers`"))
}

pub(crate) fn install() -> Result<PathBuf, String> {
    let target = unpacked_programs().join(directory_name("npm", LOCK));
    let installed = create_once(&target, Path::is_dir, |scratch| npm(&scratch.join("root")));
    installed.map_err(|error| format!("the npm packages: {error}"))?;
    Ok(target.join("node_modules"))
}

/// Installs no other version, no other file, and runs no code.
fn npm(target: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", target.display());
    fs::create_dir(target).map_err(failed)?;
    for (name, text) in [("package.json", PACKAGE), ("package-lock.json", LOCK)] {
        fs::write(target.join(name), text).map_err(failed)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(target);
    let output = npm.output().map_err(|error| format!("npm does not start: {error}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("npm fails ({}): {log}", output.status));
    }
    Ok(())
}
