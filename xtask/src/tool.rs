//! Programs of other crates, which are installed below `target` if they are missing.

use std::process::Command;

use crate::run::{Result, cargo, root, step, target_dir};

/// Returns a command that starts a crate's program in the workspace root. `package` is `CRATE`, for
/// its newest version, which is looked up each time, or `CRATE@VERSION`; `options` are for
/// `cargo install`.
pub(crate) fn tool(package: &str, options: &[&str]) -> Result<Command> {
    let home = target_dir().join("tools").join(package);
    let name = package.split_once('@').map_or(package, |(name, _)| name);
    let program = home.join("bin").join(name);
    if !program.is_file() || name == package {
        let mut install = cargo(["install", "--locked", package]);
        step(&format!("install {package}"), install.args(options).arg("--root").arg(&home))?;
    }
    let mut tool = Command::new(program);
    tool.current_dir(root());
    Ok(tool)
}
