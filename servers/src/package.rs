//! Debian packages with the programs of one server.

use std::path::{Path, PathBuf};

use crate::debian;
use crate::program::{Program, on_path, unpacked_programs};

/// A server's programs, and the packages that they come from if the machine has none.
#[derive(Debug)]
pub(crate) struct Package {
    /// The directory to unpack into, below [`unpacked_programs`].
    pub(crate) directory: &'static str,
    /// Each program, with an argument with which it succeeds unless a library is missing.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    pub(crate) debian_packages: &'static [&'static str],
}

impl Package {
    /// Finds a program on the `PATH`, then among the unpacked ones. Panics with a remedy if there
    /// is none.
    pub(crate) fn program(&self, name: &str) -> Program {
        Program::on_machine(name)
            .or_else(|| Program::unpacked(&self.unpacked(), name))
            .unwrap_or_else(|| panic!("{name} is not installed: run `cargo xtask servers`"))
    }

    pub(crate) fn install(&self) -> debian::Result {
        let is_missing = |(name, _): &&(&str, &str)| on_path(name).is_none();
        let missing: Vec<_> = self.programs.iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.unpack(|root| {
            missing.iter().all(|(name, argument)| {
                Program::unpacked(root, name).is_some_and(|program| program.runs(argument))
            })
        })
    }

    pub(crate) fn unpack(&self, works: impl Fn(&Path) -> bool) -> debian::Result {
        let target = self.unpacked();
        if works(&target) {
            return Ok(());
        }
        let names: Vec<_> = self.programs.iter().map(|(name, _)| *name).collect();
        debian::require(&names.join(", "))?;
        debian::unpack(self.debian_packages, &target, works)
    }

    pub(crate) fn unpacked(&self) -> PathBuf {
        unpacked_programs().join(self.directory)
    }
}
