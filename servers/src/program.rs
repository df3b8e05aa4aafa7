//! Finds the servers' programs: on the `PATH`, or unpacked by `install`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, with what it needs to start from any directory.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// `LD_LIBRARY_PATH`; `None` to inherit.
    pub(crate) libraries: Option<OsString>,
    /// Everything except `LD_LIBRARY_PATH` and `PATH`; `None` to inherit.
    pub(crate) environment: Option<Vec<(&'static str, OsString)>>,
    /// A command line that executes the program, such as `timeout 120`; may be empty.
    pub(crate) wrapper: &'static [&'static str],
}

impl Program {
    pub(crate) fn on_machine(name: &str) -> Option<Self> {
        on_path(name).map(Self::at)
    }

    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, libraries: None, environment: None, wrapper: &[] }
    }

    /// Looks in packages unpacked into `root`.
    pub(crate) fn unpacked(root: &Path, name: &str) -> Option<Self> {
        ["usr/bin", "usr/sbin"]
            .iter()
            .find_map(|directory| Self::unpacked_at(root, &format!("{directory}/{name}")))
    }

    pub(crate) fn unpacked_at(root: &Path, path: &str) -> Option<Self> {
        let path = root.join(path);
        path.is_file().then(|| Self { libraries: library_path(root), ..Self::at(path) })
    }

    /// Whether the program succeeds with this argument: a library may be missing.
    pub(crate) fn runs(&self, argument: &str) -> bool {
        self.command().arg(argument).output().is_ok_and(|output| output.status.success())
    }

    pub(crate) fn command(&self) -> Command {
        let mut words = self.command_line();
        let mut command = Command::new(words.next().expect("the program itself"));
        command.args(words);
        self.prepare(&mut command);
        command
    }

    pub(crate) fn command_line(&self) -> impl Iterator<Item = &OsStr> {
        self.wrapper.iter().map(OsStr::new).chain([self.path.as_os_str()])
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        if let Some(environment) = &self.environment {
            command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
            command.envs(environment.iter().map(|(name, value)| (name, value)));
        }
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }
}

/// The directory of all unpacked programs. It does not depend on `CARGO_TARGET_DIR`, which may be
/// set for the build but not for the tests.
pub(crate) fn unpacked_programs() -> PathBuf {
    match env::var_os("DQ_SERVERS_DIR") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers"),
    }
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

pub(crate) fn library_path(root: &Path) -> Option<OsString> {
    let roots = [root.join("usr/lib"), root.join("lib")];
    let entries = roots.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten();
    // Debian has a directory per architecture, such as `x86_64-linux-gnu`.
    let by_architecture =
        entries.map(|entry| entry.path()).filter(|dir| dir.to_string_lossy().contains("-linux-"));
    let unpacked = by_architecture.flat_map(|dir| {
        // The sound library, which the browser needs, has its own directory.
        let sound = dir.join("pulseaudio");
        [dir].into_iter().chain(sound.is_dir().then_some(sound))
    });
    let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let inherited: Vec<PathBuf> =
        env::split_paths(&inherited).filter(|dir| !dir.as_os_str().is_empty()).collect();
    env::join_paths(unpacked.chain(inherited)).ok()
}
