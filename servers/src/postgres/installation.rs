//! Finds PostgreSQL's programs, which Debian keeps off the `PATH`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::debian;
use crate::postgres::pgbouncer;
use crate::program::{Program, library_path, on_path, unpacked_programs};

const PROGRAMS: [&str; 4] = ["postgres", "initdb", "pg_basebackup", "psql"];

const OLDEST_VERSION: u32 = 14;

/// The programs of one version. All find their other files by their own path.
#[derive(Clone, Debug)]
pub(super) struct Installation {
    bin: PathBuf,
    libraries: Option<OsString>,
}

impl Installation {
    /// Prefers the directory that `DQ_POSTGRES_BIN` names, then the unpacked installation, which
    /// exists only if the machine's does not work. Panics with a remedy if there is none.
    pub(super) fn find() -> Self {
        Self::named()
            .or_else(|| Self::unpacked(&directory()))
            .or_else(Self::on_machine)
            .unwrap_or_else(|| panic!("PostgreSQL is not installed: run `cargo xtask servers`"))
    }

    /// Every program gets only a locale, because variables such as `PGOPTIONS` change what it does.
    pub(super) fn program(&self, name: &str) -> Program {
        Program {
            libraries: self.libraries.clone(),
            environment: Some(vec![("LC_ALL", "C.UTF-8".into())]),
            ..Program::at(self.bin.join(name))
        }
    }

    fn named() -> Option<Self> {
        let bin = env::var_os("DQ_POSTGRES_BIN").filter(|bin| !bin.is_empty())?;
        Some(Self { bin: bin.into(), libraries: None })
    }

    fn on_machine() -> Option<Self> {
        let on_path = on_path("postgres").and_then(|path| path.canonicalize().ok());
        let bin = on_path.as_deref().and_then(Path::parent).filter(|bin| is_complete(bin));
        let bin = bin.map(Path::to_owned).or_else(|| newest(Path::new("/")))?;
        Some(Self { bin, libraries: None })
    }

    fn unpacked(root: &Path) -> Option<Self> {
        // The programs run in other directories, where a relative path is wrong.
        let root = root.canonicalize().ok()?;
        Some(Self { bin: newest(&root)?, libraries: library_path(&root) })
    }

    fn runs(&self) -> bool {
        PROGRAMS.iter().all(|name| self.program(name).runs("--version"))
    }
}

/// Unpacks PostgreSQL and pgbouncer unless the machine has ones that start.
pub(crate) fn install() -> debian::Result {
    if !Installation::on_machine().is_some_and(|found| found.runs()) {
        unpack(&directory())?;
    }
    pgbouncer::PACKAGE.install()
}

fn unpack(target: &Path) -> debian::Result {
    let works = |root: &Path| Installation::unpacked(root).is_some_and(|found| found.runs());
    if works(target) {
        return Ok(());
    }
    debian::require(&PROGRAMS.join(", "))?;
    let server = debian::dependency("postgresql", "postgresql-")?;
    let client = server.replace("postgresql-", "postgresql-client-");
    debian::unpack(&[&server, &client, "libpq5"], target, works)
}

fn directory() -> PathBuf {
    unpacked_programs().join("postgres")
}

fn newest(root: &Path) -> Option<PathBuf> {
    let versions = root.join("usr/lib/postgresql").read_dir().ok()?.flatten();
    let numbers = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let bin = |version: u32| root.join(format!("usr/lib/postgresql/{version}/bin"));
    let usable =
        numbers.filter(|version| *version >= OLDEST_VERSION && is_complete(&bin(*version)));
    usable.max().map(bin)
}

fn is_complete(bin: &Path) -> bool {
    PROGRAMS.iter().all(|name| bin.join(name).is_file())
}
