//! Where the programs of the servers are: on the machine, or unpacked by [`crate::install`].

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The value of `LD_LIBRARY_PATH` that an unpacked program needs for its libraries.
    pub(crate) libraries: Option<OsString>,
    /// All that the program finds in its environment besides libraries and `PATH`, if it must not
    /// see ours.
    pub(crate) environment: Option<Vec<(&'static str, OsString)>>,
}

impl Program {
    /// Looks for `name` among the machine's programs, then among those unpacked as `package`.
    pub(crate) fn find(package: &str, name: &str) -> Option<Self> {
        on_path(name)
            .map(|path| Self { path, libraries: None, environment: None })
            .or_else(|| Self::unpacked(&place().join(package), name))
    }

    /// The program `name` in a directory that Debian packages were unpacked into.
    pub(crate) fn unpacked(root: &Path, name: &str) -> Option<Self> {
        let path = root.join("usr/bin").join(name);
        let libraries = path.is_file().then(|| libraries(root))?;
        Some(Self { path, libraries, environment: None })
    }

    /// As [`find`](Self::find), for tests: what is missing is told with the remedy.
    pub(crate) fn expect(package: &str, name: &str) -> Self {
        Self::find(package, name)
            .unwrap_or_else(|| panic!("{name} is not there: run `cargo xtask servers`"))
    }

    /// Does the program start? Its libraries may be missing.
    pub(crate) fn runs(&self, argument: &str) -> bool {
        self.command().arg(argument).output().is_ok_and(|output| output.status.success())
    }

    /// A command of the program, without arguments yet.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        self.prepare(&mut command);
        command
    }

    /// Gives `command` what the program needs from its environment.
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

/// Where programs are unpacked. `CARGO_TARGET_DIR` does not move it: a test must find it too, and
/// that variable may have been set for the build only.
pub(crate) fn place() -> PathBuf {
    match env::var_os("DQ_SERVERS_DIR") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers"),
    }
}

/// A program on the `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// The directories below `root` in which Debian keeps libraries, before those set already.
pub(crate) fn libraries(root: &Path) -> Option<OsString> {
    let roots = [root.join("usr/lib"), root.join("lib")];
    let by_machine = roots.iter().filter_map(|dir| dir.read_dir().ok()).flatten();
    let by_machine = by_machine.filter_map(|entry| Some(entry.ok()?.path()));
    let by_machine = by_machine.filter(|dir| dir.to_string_lossy().contains("-linux-"));
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let before: Vec<PathBuf> =
        env::split_paths(&before).filter(|dir| !dir.as_os_str().is_empty()).collect();
    env::join_paths(by_machine.chain(before)).ok()
}
