//! `cargo xtask package`: checks that every published crate can be packaged and compiles from its
//! package.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run::{Result, cargo, cargo_in, output, read, root, step, target_dir, write};

pub(crate) const UNPUBLISHED: [&str; 7] = [
    "dq-bench",
    "dq-examples",
    "dq-faults-client",
    "dq-servers",
    "dq-tests",
    "dq-ui-tests",
    "xtask",
];

/// Packages all published crates and checks them together, which finds files missing from a
/// package. One workspace reuses the dependencies compiled by `cargo xtask test`; `cargo publish`
/// later builds each crate on its own.
pub(crate) fn package() -> Result {
    check_documented_features()?;
    // The check below is offline so that it takes the locked versions.
    step("dependencies", &mut cargo(["fetch", "--locked"]))?;
    let packages = target_dir().join("package");
    for old in crates_in(&packages)? {
        fs::remove_file(&old).map_err(|error| format!("{old} cannot be deleted: {error}"))?;
    }
    let mut package = cargo(["package", "--workspace", "--locked", "--no-verify"]);
    for name in UNPUBLISHED {
        package.args(["--exclude", name]);
    }
    step("packages", &mut package)?;

    let dir = target_dir().join("xtask/package");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    write(&dir.join("Cargo.lock"), &read(&root().join("Cargo.lock"))?)?;
    let crates = crates_in(&packages)?;
    // `-m` sets the current time: packaged timestamps never change, so cargo would miss changes
    // since the last check.
    for file in &crates {
        step(
            &format!("unpack {file}"),
            Command::new("tar").current_dir(&dir).args(["-xzmf", file]),
        )?;
    }
    write(&dir.join("Cargo.toml"), &workspace(&dir)?)?;
    let check = ["check", "--workspace", "--all-features", "--offline"];
    step("unpacked crates", &mut cargo_in(&dir, check))
}

/// docs.rs builds a crate with its default features, unless its manifest says otherwise.
fn check_documented_features() -> Result {
    for package in workspace_packages()? {
        let has_features = package["features"].as_object().is_some_and(|them| !them.is_empty());
        let is_published = !UNPUBLISHED.iter().any(|name| package["name"] == *name);
        if is_published && has_features && package["metadata"]["docs"]["rs"]["all-features"] != true
        {
            let manifest = package["manifest_path"].as_str().unwrap_or_default();
            return Err(format!(
                "{manifest} has features: add [package.metadata.docs.rs] with all-features = true"
            ));
        }
    }
    Ok(())
}

/// The workspace's packages, as `cargo metadata` describes them.
pub(crate) fn workspace_packages() -> Result<Vec<Value>> {
    let metadata =
        output("cargo metadata", &mut cargo(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

fn crates_in(packages: &Path) -> Result<Vec<String>> {
    let Ok(files) = fs::read_dir(packages) else { return Ok(Vec::new()) };
    let files = files.flatten().filter_map(|file| file.path().into_os_string().into_string().ok());
    Ok(files.filter(|file| file.ends_with(".crate")).collect())
}

fn workspace(dir: &Path) -> Result<String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let crates = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        crates.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let mut patches = String::new();
    for directory in &names {
        let name = directory
            .strip_suffix(concat!("-", env!("CARGO_PKG_VERSION")))
            .ok_or_else(|| format!("{directory} has another version than xtask"))?;
        patches += &format!("{name} = {{ path = {directory:?} }}\n");
    }
    Ok(format!(
        "[workspace]\nresolver = \"3\"\nmembers = {names:?}\n\n[patch.crates-io]\n{patches}"
    ))
}
