//! Prometheus's tools.

use std::process::Command;

use crate::package::Package;

pub(crate) const PACKAGE: Package = Package {
    directory: "prometheus",
    programs: &[("promtool", "--version")],
    debian_packages: &["prometheus"],
};

/// Returns a command for `promtool`, without arguments.
#[must_use]
pub fn promtool() -> Command {
    PACKAGE.program("promtool").command()
}
