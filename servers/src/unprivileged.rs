//! Servers that refuse to run as root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::program::Program;

const AS_NOBODY: &[&str] =
    &["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"];

/// Also enters directories that only root may enter, such as a home with the unpacked programs.
const AS_NOBODY_ANYWHERE: &[&str] = &[
    "setpriv",
    "--reuid=nobody",
    "--regid=nogroup",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
    // Otherwise `access`, which initdb uses, ignores the capability.
    "--securebits=+no_setuid_fixup",
    "--",
];

/// If this process is root, makes the program run as `nobody`, who then owns `dir`.
pub(crate) fn unprivileged(mut program: Program, dir: &Path) -> Program {
    if !is_root() {
        return program;
    }
    own(dir);
    program.wrapper = AS_NOBODY;
    let mut probe = Program { path: "sh".into(), ..program.clone() }.command();
    probe.args(["-c", r#"cd "$1" && exec "$2" --version"#, "sh"]).args([dir, &program.path]);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        program.wrapper = AS_NOBODY_ANYWHERE;
    }
    program
}

/// If this process is root, gives `dir` with its files to `nobody`.
pub(crate) fn own(dir: &Path) {
    if is_root() {
        let changed = Command::new("chown").args(["-R", "nobody:nogroup"]).arg(dir).status();
        let changed = changed.is_ok_and(|status| status.success());
        assert!(changed, "{} cannot be given to nobody", dir.display());
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
