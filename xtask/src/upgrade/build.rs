//! Builds the client against this revision and an older one.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::crew::Program;
use crate::run::{Result, cargo_in, read, root, step, target_dir, write};

pub(crate) fn new(dir: &Path) -> Result<Program> {
    build(&dir.join("new"), "new", &root())
}

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
    let manifest = format!(
        "[package]\nname = \"upgrade-client\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\ndq = {{ package = \"dq-jobs\", path = {:?}, features = [\"postgres\", \
         \"rabbitmq\", \"redis\"] }}\ntokio = {{ version = \"1\", features = [\"macros\", \
         \"rt-multi-thread\", \"time\"] }}\n\n[workspace]\n",
        source.display().to_string()
    );
    write(&dir.join("Cargo.toml"), &manifest)?;
    write(&dir.join("src/main.rs"), &read(&root().join("xtask/upgrade-client/main.rs"))?)?;
    write(&dir.join("Cargo.lock"), &read(&source.join("Cargo.lock"))?)?;
    step(&format!("client of the {name} revision"), &mut cargo_in(dir, ["build"]))?;
    let path = dir.join("upgrade-client");
    fs::copy(target_dir().join("debug/upgrade-client"), &path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Program { name, path, environment: Vec::new() })
}
