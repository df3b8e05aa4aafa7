//! Installs the programs that the tests need, for `cargo xtask servers`.
//!
//! Programs on the machine are used if they exist. Others come from Debian packages: servers are
//! unpacked into `target/servers` (or `DQ_SERVERS_DIR`). The JDK, Maven and Python start no
//! service, so they are installed. All functions are idempotent, and fast if nothing is missing.
//!
//! Each error is a message: how to install manually, or which command failed.

use std::path::Path;
use std::process::Command;

use crate::browser::Browser;
use crate::debian;
use crate::program::{
    BROWSER, NGINX, PROMETHEUS, Program, RABBITMQ, REDIS, on_path, unpacked_programs,
};
use crate::pypi::PythonPackage;
use crate::rabbitmq::Installation;

/// RabbitMQ, and the Erlang packages that it needs. All are unpacked, so that the tree is complete.
const RABBITMQ_PACKAGES: [&str; 18] = [
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
];

/// Installs all programs and PyPI packages.
///
/// # Errors
///
/// If an installation fails.
pub fn everything() -> Result<(), String> {
    redis()?;
    rabbitmq()?;
    browser()?;
    unpack_programs(NGINX, &[("nginx", "-v")], &["nginx-light"])?;
    unpack_programs(PROMETHEUS, &[("promtool", "--version")], &["prometheus"])?;
    java()?;
    python()?;
    PythonPackage::ALL.into_iter().try_for_each(|package| package.install().map(drop))
}

/// Installs `redis-server`, `redis-cli`, and `openssl` for TLS certificates.
///
/// # Errors
///
/// If the installation fails.
pub fn redis() -> Result<(), String> {
    let programs =
        [("redis-server", "--version"), ("redis-cli", "--version"), ("openssl", "version")];
    unpack_programs(REDIS, &programs, &["redis-server", "redis-tools", "openssl"])
}

/// Installs RabbitMQ with its tools, and Erlang.
///
/// # Errors
///
/// If the installation fails.
pub fn rabbitmq() -> Result<(), String> {
    if Installation::on_machine().is_some_and(|installation| installation.runs()) {
        return Ok(());
    }
    let works = |root: &Path| Installation::unpacked(root).is_some_and(|found| found.runs());
    unpack(RABBITMQ, "erl and rabbitmq-server", &RABBITMQ_PACKAGES, works)
}

/// Chromium with its WebDriver, and a font with Chinese characters.
fn browser() -> Result<(), String> {
    if Browser::on_machine().is_some_and(|browser| browser.runs()) {
        return Ok(());
    }
    let works = |root: &Path| Browser::unpacked(root).is_some_and(|found| found.runs());
    let packages = ["chromium", "chromium-driver", "fonts-wqy-microhei"];
    unpack(BROWSER, "chromium and chromedriver", &packages, works)
}

/// A JDK and Maven, for tests with Java clients.
fn java() -> Result<(), String> {
    if ["java", "javac", "mvn"].iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    require_apt("java, javac and mvn")?;
    debian::install(&["default-jdk-headless", "maven"])
}

/// Python with pip, for tests with third-party packages.
fn python() -> Result<(), String> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--version"]);
    if pip.output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    require_apt("python3 with pip")?;
    debian::install(&["python3", "python3-pip"])
}

/// Unpacks packages for those of the `programs` that the machine has not; each must succeed with
/// its argument.
fn unpack_programs(dir: &str, programs: &[(&str, &str)], packages: &[&str]) -> Result<(), String> {
    let missing: Vec<_> =
        programs.iter().filter(|(program, _)| on_path(program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let works = |root: &Path| {
        missing.iter().all(|(name, argument)| {
            Program::unpacked(root, name).is_some_and(|program| program.runs(argument))
        })
    };
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    unpack(dir, &names.join(", "), packages, works)
}

fn unpack(
    dir: &str,
    programs: &str,
    packages: &[&str],
    works: impl Fn(&Path) -> bool,
) -> Result<(), String> {
    let target = unpacked_programs().join(dir);
    if works(&target) {
        return Ok(());
    }
    require_apt(programs)?;
    debian::unpack(packages, &target, works)
}

fn require_apt(programs: &str) -> Result<(), String> {
    debian::is_available().then_some(()).ok_or_else(|| {
        format!(
            "the tests need programs that are missing or do not work, and there is no apt-get to \
             download them: install or repair {programs}"
        )
    })
}
