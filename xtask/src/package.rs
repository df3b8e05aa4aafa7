//! `cargo xtask package`: checks that every published crate can be packaged and builds from its
//! package.

use std::fs;
use std::path::PathBuf;

use crate::run::{Result, cargo, step};

/// Members of the workspace with `publish = false`.
const UNPUBLISHED: [&str; 5] =
    ["dq-servers", "dq-bench", "xtask", "dq-faults-client", "dq-ui-tests"];

/// Packages all published crates together, so that each is built with the packages of the others
/// instead of those of a registry.
pub(crate) fn package() -> Result {
    forget_unpacked()?;
    let mut package = cargo(["package", "--workspace", "--locked"]);
    for name in UNPUBLISHED {
        package.args(["--exclude", name]);
    }
    step("packages", &mut package)
}

/// Deletes what earlier runs have unpacked. Cargo builds each package with those of the others from
/// a local registry, and does not unpack a version again whose content has changed since.
fn forget_unpacked() -> Result {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))) else {
        return Ok(());
    };
    // The names of other registries begin with their host.
    let Ok(registries) = fs::read_dir(home.join("registry/src")) else { return Ok(()) };
    let registries = registries.flatten().map(|entry| entry.path());
    let local = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('-'))
    };
    for registry in registries.filter(local) {
        let packages = fs::read_dir(&registry).into_iter().flatten().flatten();
        for package in packages.filter(|it| it.file_name().to_string_lossy().starts_with("dq-")) {
            fs::remove_dir_all(package.path()).map_err(|error| {
                format!("{} cannot be deleted: {error}", package.path().display())
            })?;
        }
    }
    Ok(())
}
