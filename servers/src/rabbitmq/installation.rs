//! Finds RabbitMQ and its Erlang, and starts their programs.
//!
//! Debian's scripts require root or the user `rabbitmq`, and the directory `/usr/lib/erlang`. Here
//! every path is in the environment, so an unpacked tree runs from any directory.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::debian;
use crate::package::Package;
use crate::program::{Program, library_path, on_path};

/// RabbitMQ, and the Erlang packages that it needs. All are unpacked, so that the tree is complete.
const PACKAGE: Package = Package {
    directory: "rabbitmq",
    programs: &[("erl", "-version"), ("rabbitmq-server", "version")],
    debian_packages: &[
        "erlang-asn1",
        "erlang-base",
        "erlang-crypto",
        "erlang-eldap",
        "erlang-ftp",
        "erlang-inets",
        "erlang-mnesia",
        "erlang-os-mon",
        "erlang-parsetools",
        "erlang-public-key",
        "erlang-runtime-tools",
        "erlang-snmp",
        "erlang-ssl",
        "erlang-syntax-tools",
        "erlang-tftp",
        "erlang-tools",
        "erlang-xmerl",
        "rabbitmq-server",
    ],
};

/// The plugins that tests can enable, and what every node needs. Those of other names that start
/// with `rabbitmq_` are optional.
const PLUGINS: [&str; 3] = ["rabbitmq_prelaunch", "rabbitmq_management", "rabbitmq_web_dispatch"];

#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// Erlang's root, with `lib`.
    erlang: PathBuf,
    bin: PathBuf,
    /// RabbitMQ's root, with `plugins` and `escript`.
    home: PathBuf,
    plugins: PathBuf,
    libraries: Option<OsString>,
}

impl Installation {
    /// Prefers the unpacked installation, which exists only if the machine's does not work. Panics
    /// with a remedy if there is none.
    pub(crate) fn find() -> Self {
        Self::unpacked(&PACKAGE.unpacked())
            .or_else(Self::on_machine)
            .unwrap_or_else(|| panic!("RabbitMQ is not installed: run `cargo xtask servers`"))
    }

    fn on_machine() -> Option<Self> {
        let erl = on_path("erl")?.canonicalize().ok()?;
        let (erlang, bin) = erl.ancestors().find_map(erlang)?;
        // Debian's script is outside RabbitMQ's tree, and not on every user's path.
        let server = on_path("rabbitmq-server").and_then(|path| path.canonicalize().ok());
        let server = server.unwrap_or_default();
        let beside_server = server.ancestors().find(|dir| is_home(dir)).map(Path::to_owned);
        let home = beside_server.or_else(|| home(Path::new("/usr/lib/rabbitmq/lib")))?;
        Some(Self { erlang, bin, plugins: home.join("plugins"), home, libraries: None })
    }

    fn unpacked(root: &Path) -> Option<Self> {
        // The programs run in other directories, where a relative path is wrong.
        let root = root.canonicalize().ok()?;
        let (erlang, bin) = erlang(&root.join("usr/lib/erlang"))?;
        let home = home(&root.join("usr/lib/rabbitmq/lib"))?;
        let libraries = library_path(&root);
        Some(Self { erlang, bin, plugins: home.join("plugins"), home, libraries })
    }

    /// Leaves out optional plugins, by links in a new directory. A node reads the modules and
    /// settings of all plugins that it finds, enabled or not: half the work of a start.
    pub(super) fn with_few_plugins(mut self, dir: PathBuf) -> io::Result<Self> {
        std::fs::create_dir(&dir)?;
        for plugin in self.plugins.read_dir()? {
            let plugin = plugin?;
            let name = plugin.file_name().to_string_lossy().into_owned();
            let optional = name.starts_with("rabbitmq_")
                && !PLUGINS.iter().any(|needed| name.starts_with(needed));
            if !optional {
                symlink(plugin.path(), dir.join(name))?;
            }
        }
        self.plugins = dir;
        Ok(self)
    }

    /// Whether Erlang starts: its libraries, or those of `crypto`, may be missing.
    fn runs(&self) -> bool {
        // Erlang needs `HOME`; there it finds no files to load.
        let home = OsString::from("/nonexistent");
        let test = "ok = crypto:start(), halt(0).";
        let erl = self.erl(vec![("HOME", home)]);
        let output =
            erl.command().args(["-noinput", "-boot", "start_clean", "-eval", test]).output();
        output.is_ok_and(|output| output.status.success())
    }

    pub(crate) fn erl(&self, environment: Vec<(&'static str, OsString)>) -> Program {
        let mut program = self.program("erlexec", environment);
        let plugins = &self.plugins;
        program.environment.get_or_insert_default().extend([
            ("ROOTDIR", self.erlang.clone().into()),
            ("BINDIR", self.bin.clone().into()),
            ("EMU", "beam".into()),
            // Newer nodes use it to start a helper node, which inspects a cluster before they join.
            ("PROGNAME", "erlexec".into()),
            ("ERL_LIBS", plugins.into()),
            ("RABBITMQ_HOME", self.home.clone().into()),
            ("RABBITMQ_PLUGINS_DIR", plugins.into()),
        ]);
        program
    }

    pub(crate) fn ctl(&self) -> PathBuf {
        self.home.join("escript/rabbitmqctl")
    }

    /// A program of Erlang with only this environment.
    pub(crate) fn program(
        &self,
        name: &str,
        mut environment: Vec<(&'static str, OsString)>,
    ) -> Program {
        // RabbitMQ's tools print a warning with any other locale.
        environment.push(("LC_ALL", "C.UTF-8".into()));
        Program {
            libraries: self.libraries.clone(),
            environment: Some(environment),
            ..Program::at(self.bin.join(name))
        }
    }
}

/// Unpacks RabbitMQ unless the machine has one that starts.
pub(crate) fn install() -> debian::Result {
    if Installation::on_machine().is_some_and(|found| found.runs()) {
        return Ok(());
    }
    PACKAGE.unpack(|root| Installation::unpacked(root).is_some_and(|found| found.runs()))
}

/// `dir` and its program directory.
fn erlang(dir: &Path) -> Option<(PathBuf, PathBuf)> {
    let bin = versioned(dir, "erts-")?.join("bin");
    bin.join("erlexec").is_file().then(|| (dir.to_owned(), bin))
}

fn home(lib: &Path) -> Option<PathBuf> {
    versioned(lib, "rabbitmq_server-").filter(|dir| is_home(dir))
}

fn is_home(dir: &Path) -> bool {
    dir.join("plugins").is_dir() && dir.join("escript/rabbitmqctl").is_file()
}

/// Finds the directory entry with the prefix. A package installs one version.
fn versioned(dir: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = dir.read_dir().ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let has_prefix = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    entries.filter(has_prefix).max()
}
