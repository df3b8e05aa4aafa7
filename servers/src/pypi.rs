//! PyPI packages, installed by pip. Each file must match a known hash.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::once::{create_once, directory_name};
use crate::program::unpacked_programs;

const PYPI: &str = "pypi";

/// A package that tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonPackage {
    /// `axe-playwright-python`, for its axe-core script.
    AxeCore,
    /// `openapi-python-client`, which generates HTTP API clients.
    OpenapiClient,
    /// `psycopg`, the PostgreSQL driver.
    Psycopg,
    /// `schemathesis`, which tests HTTP APIs against their OpenAPI documents.
    Schemathesis,
    /// `standardwebhooks`, which verifies webhook signatures.
    StandardWebhooks,
}

impl PythonPackage {
    /// All packages.
    pub const ALL: [Self; 5] = [
        Self::AxeCore,
        Self::OpenapiClient,
        Self::Psycopg,
        Self::Schemathesis,
        Self::StandardWebhooks,
    ];

    const fn requirements(self) -> &'static str {
        match self {
            Self::AxeCore => include_str!("../pypi/axe-playwright-python.txt"),
            Self::OpenapiClient => include_str!("../pypi/openapi-python-client.txt"),
            Self::Psycopg => include_str!("../pypi/psycopg.txt"),
            Self::Schemathesis => include_str!("../pypi/schemathesis.txt"),
            Self::StandardWebhooks => include_str!("../pypi/standardwebhooks.txt"),
        }
    }

    fn directory(self) -> String {
        let requirements = self.requirements();
        let mut lines = requirements.lines().filter(|line| !line.starts_with('#'));
        let first = lines.next().unwrap_or_default().trim_end_matches(" \\");
        directory_name(&first.replace("==", "-"), requirements)
    }

    /// Returns the package's directory, for `PYTHONPATH`; downloads it if it is missing.
    pub fn install(self) -> Result<PathBuf, String> {
        let target = unpacked_programs().join(PYPI).join(self.directory());
        let installed = create_once(&target, Path::is_dir, |scratch| {
            let requirements = scratch.join("requirements.txt");
            fs::write(&requirements, self.requirements()).map_err(|error| error.to_string())?;
            pip(&requirements, &scratch.join("root"))
        });
        installed.map_err(|error| format!("the Python package {self:?}: {error}"))?;
        Ok(target)
    }
}

/// Returns a package's directory, for `PYTHONPATH`; downloads it if it is missing.
#[must_use]
pub fn python_package(package: PythonPackage) -> PathBuf {
    package.install().unwrap_or_else(|error| panic!("{error}\nrun `cargo xtask servers`"))
}

/// Installs no other version, no other file, and nothing that runs code on installation.
fn pip(requirements: &Path, target: &Path) -> Result<(), String> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
        .args(["--no-deps", "--require-hashes", "--only-binary=:all:", "--timeout", "60"])
        .arg("--target")
        .arg(target)
        .arg("--requirement")
        .arg(requirements);
    let output = pip.output().map_err(|error| format!("python3 does not start: {error}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("pip fails ({}): {log}", output.status));
    }
    Ok(())
}
