//! Builds the client against this revision and an older one.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::crew::Program;
use crate::run::{Result, cargo, root, step};

pub(crate) fn new(dir: &Path) -> Result<Program> {
    build(&dir.join("new"), "new", &root())
}

/// Builds the client against a revision, checked out below `dir`.
pub(crate) fn old(dir: &Path, revision: &str) -> Result<Program> {
    let source = dir.join("old-source");
    let mut git = Command::new("git");
    git.current_dir(root());
    if source.exists() {
        git.arg("-C").arg(&source).args(["checkout", "--quiet", "--detach", revision]);
    } else {
        git.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&source).arg(revision);
    }
    step(&format!("checkout of {revision}"), &mut git)?;
    build(&dir.join("old"), "old", &source)
}

/// Builds the client in `dir`. Both builds share the workspace's target directory, which already
/// has most dependencies. So each program is copied out before the next build replaces it.
fn build(dir: &Path, name: &'static str, source: &Path) -> Result<Program> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(dir.join("src")).map_err(failed)?;
    let manifest = format!(
        "[package]\nname = \"upgrade-client\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\ndq = {{ package = \"dq-jobs\", path = {:?}, features = [\"redis\", \
         \"rabbitmq\"] }}\ntokio = {{ version = \"1\", features = [\"macros\", \
         \"rt-multi-thread\", \"time\"] }}\n\n[workspace]\n",
        source.display().to_string()
    );
    fs::write(dir.join("Cargo.toml"), manifest).map_err(failed)?;
    let client = root().join("xtask/upgrade-client/main.rs");
    fs::copy(client, dir.join("src/main.rs")).map_err(failed)?;
    // The dependency versions the revision was tested with.
    fs::copy(source.join("Cargo.lock"), dir.join("Cargo.lock")).map_err(failed)?;
    let target = root().join("target");
    let mut build = cargo(["build"]);
    // Uses this workspace's profiles, because cargo recompiles all dependencies for others.
    build.arg("--config").arg(root().join(".cargo/config.toml"));
    build.current_dir(dir).env("CARGO_TARGET_DIR", &target);
    step(&format!("client of the {name} revision"), &mut build)?;
    let path = dir.join("upgrade-client");
    fs::copy(target.join("debug/upgrade-client"), &path).map_err(failed)?;
    Ok(Program { name, path, environment: Vec::new() })
}
