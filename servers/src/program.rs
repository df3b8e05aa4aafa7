//! Finds the programs of the servers: on the machine, or unpacked by `install`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of the unpacked Redis and the programs that come with it.
pub(crate) const REDIS: &str = "redis";

/// Directory of the unpacked RabbitMQ and its Erlang.
pub(crate) const RABBITMQ: &str = "rabbitmq";

/// A program and the environment that it needs.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The value of `LD_LIBRARY_PATH` that an unpacked program needs for its libraries.
    pub(crate) libraries: Option<OsString>,
    /// The whole environment of the program besides libraries and `PATH`; `None` to inherit.
    pub(crate) environment: Option<Vec<(&'static str, OsString)>>,
}

impl Program {
    /// Finds `name` among the machine's programs, or else among those unpacked as `package`.
    pub(crate) fn find(package: &str, name: &str) -> Option<Self> {
        on_path(name)
            .map(|path| Self { path, libraries: None, environment: None })
            .or_else(|| Self::unpacked(&unpacked_programs().join(package), name))
    }

    /// The program `name` in a directory into which Debian packages were unpacked.
    pub(crate) fn unpacked(root: &Path, name: &str) -> Option<Self> {
        let path = root.join("usr/bin").join(name);
        let libraries = path.is_file().then(|| libraries(root))?;
        Some(Self { path, libraries, environment: None })
    }

    /// Like [`find`](Self::find), but panics with the remedy if there is none.
    pub(crate) fn expect(package: &str, name: &str) -> Self {
        Self::find(package, name)
            .unwrap_or_else(|| panic!("{name} is not installed: run `cargo xtask servers`"))
    }

    /// Whether the program starts: its libraries may be missing.
    pub(crate) fn runs(&self, argument: &str) -> bool {
        self.command().arg(argument).output().is_ok_and(|output| output.status.success())
    }

    /// A command that runs the program, without arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        self.prepare(&mut command);
        command
    }

    /// Sets the environment of `command` for the program.
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

/// The directory into which programs are unpacked. It does not depend on `CARGO_TARGET_DIR`, which may be
/// set for the build but not for the tests.
pub(crate) fn unpacked_programs() -> PathBuf {
    match env::var_os("DQ_SERVERS_DIR") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers"),
    }
}

/// Finds a program on the `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// The value of `LD_LIBRARY_PATH` for programs in `root`: Debian's library directories there, and then the
/// current value.
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
