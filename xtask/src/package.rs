//! `cargo xtask package`: checks that every published crate can be packaged and builds from its
//! package.

use crate::run::{Result, cargo, step};

/// Members of the workspace with `publish = false`.
const UNPUBLISHED: [&str; 4] = ["dq-servers", "dq-bench", "xtask", "dq-ui-tests"];

/// Packages all published crates together, so that each is built with the packages of the others
/// instead of those of a registry.
pub(crate) fn package() -> Result {
    let mut package = cargo(["package", "--workspace", "--locked"]);
    for name in UNPUBLISHED {
        package.args(["--exclude", name]);
    }
    step("packages", &mut package)
}
