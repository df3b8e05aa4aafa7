//! Finds the servers' programs: on the `PATH`, or unpacked by `install`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const REDIS: &str = "redis";

pub(crate) const RABBITMQ: &str = "rabbitmq";

pub(crate) const BROWSER: &str = "chromium";

pub(crate) const NGINX: &str = "nginx";

pub(crate) const PROMETHEUS: &str = "prometheus";

#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) libraries: Option<OsString>,
    /// Everything except `LD_LIBRARY_PATH` and `PATH`; `None` to inherit.
    pub(crate) environment: Option<Vec<(&'static str, OsString)>>,
}

impl Program {
    /// Looks on the `PATH`, then among the programs unpacked into `package`.
    pub(crate) fn find(package: &str, name: &str) -> Option<Self> {
        on_path(name)
            .map(|path| Self { path, libraries: None, environment: None })
            .or_else(|| Self::unpacked(&unpacked_programs().join(package), name))
    }

    pub(crate) fn unpacked(root: &Path, name: &str) -> Option<Self> {
        let paths = ["usr/bin", "usr/sbin"].map(|directory| root.join(directory).join(name));
        let path = paths.into_iter().find(|path| path.is_file())?;
        Some(Self { path, libraries: library_path(root), environment: None })
    }

    /// Like [`find`](Self::find), but panics with a remedy if there is none.
    pub(crate) fn expect(package: &str, name: &str) -> Self {
        Self::find(package, name)
            .unwrap_or_else(|| panic!("{name} is not installed: run `cargo xtask servers`"))
    }

    /// Whether the program succeeds with this argument: a library may be missing.
    pub(crate) fn runs(&self, argument: &str) -> bool {
        self.command().arg(argument).output().is_ok_and(|output| output.status.success())
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        self.prepare(&mut command);
        command
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

/// Does not depend on `CARGO_TARGET_DIR`, which may be set for the build but not for the tests.
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

/// `LD_LIBRARY_PATH` for programs unpacked into `root`.
pub(crate) fn library_path(root: &Path) -> Option<OsString> {
    let roots = [root.join("usr/lib"), root.join("lib")];
    // Debian has a directory per architecture, such as `x86_64-linux-gnu`.
    let by_architecture = roots.iter().filter_map(|dir| dir.read_dir().ok()).flatten();
    let by_architecture = by_architecture.filter_map(|entry| Some(entry.ok()?.path()));
    let by_architecture = by_architecture.filter(|dir| dir.to_string_lossy().contains("-linux-"));
    let current = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let current: Vec<PathBuf> =
        env::split_paths(&current).filter(|dir| !dir.as_os_str().is_empty()).collect();
    env::join_paths(by_architecture.chain(current)).ok()
}
