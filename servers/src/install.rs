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

/// Erlang packages that RabbitMQ needs. All are unpacked, so that the tree is complete.
const ERLANG: [&str; 17] = [
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
    nginx()?;
    prometheus()?;
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
    let programs = ["redis-server", "redis-cli", "openssl"];
    if programs.iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    let works = |root: &Path| {
        let missing = programs.iter().filter(|program| on_path(program).is_none());
        missing.copied().all(|name| {
            let argument = if name == "openssl" { "version" } else { "--version" };
            Program::unpacked(root, name).is_some_and(|program| program.runs(argument))
        })
    };
    let target = unpacked_programs().join(REDIS);
    if works(&target) {
        return Ok(());
    }
    with_packages(&programs, || {
        debian::unpack(&["redis-server", "redis-tools", "openssl"], &target, works)
    })
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
    let target = unpacked_programs().join(RABBITMQ);
    if works(&target) {
        return Ok(());
    }
    let packages = [&ERLANG[..], &["rabbitmq-server"]].concat();
    with_packages(&["erl", "rabbitmq-server"], || debian::unpack(&packages, &target, works))
}

/// Installs Chromium with its WebDriver, and a font with Chinese characters.
///
/// # Errors
///
/// If the installation fails.
pub fn browser() -> Result<(), String> {
    if Browser::on_machine().is_some_and(|browser| browser.runs()) {
        return Ok(());
    }
    let works = |root: &Path| Browser::unpacked(root).is_some_and(|found| found.runs());
    let target = unpacked_programs().join(BROWSER);
    if works(&target) {
        return Ok(());
    }
    with_packages(&["chromium", "chromedriver"], || {
        debian::unpack(&["chromium", "chromium-driver", "fonts-wqy-microhei"], &target, works)
    })
}

/// Installs nginx.
///
/// # Errors
///
/// If the installation fails.
pub fn nginx() -> Result<(), String> {
    unpacked(NGINX, "nginx", "-v", "nginx-light")
}

/// Installs `promtool`, which checks metrics and rules.
///
/// # Errors
///
/// If the installation fails.
pub fn prometheus() -> Result<(), String> {
    unpacked(PROMETHEUS, "promtool", "--version", "prometheus")
}

/// Installs a JDK and Maven, for tests with Java clients.
///
/// # Errors
///
/// If the installation fails.
pub fn java() -> Result<(), String> {
    let programs = ["java", "javac", "mvn"];
    if programs.iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    with_packages(&programs, || debian::install(&["default-jdk-headless", "maven"]))
}

/// Installs Python with pip, for tests with third-party packages.
///
/// # Errors
///
/// If the installation fails.
pub fn python() -> Result<(), String> {
    let has_pip = || {
        let mut python = Command::new("python3");
        python.args(["-m", "pip", "--version"]);
        python.output().is_ok_and(|output| output.status.success())
    };
    if has_pip() {
        return Ok(());
    }
    with_packages(&["python3"], || debian::install(&["python3", "python3-pip"]))
}

/// Unpacks a package, unless the machine has its program. `program argument` must succeed.
fn unpacked(dir: &str, program: &str, argument: &str, package: &str) -> Result<(), String> {
    if on_path(program).is_some() {
        return Ok(());
    }
    let works =
        |root: &Path| Program::unpacked(root, program).is_some_and(|found| found.runs(argument));
    let target = unpacked_programs().join(dir);
    if works(&target) {
        return Ok(());
    }
    with_packages(&[program], || debian::unpack(&[package], &target, works))
}

/// Without Debian's package tools, the error names the missing or broken programs.
fn with_packages(programs: &[&str], get: impl FnOnce() -> debian::Result) -> debian::Result {
    if debian::is_available() {
        return get();
    }
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| on_path(program).is_none()).collect();
    Err(manual_installation(programs, &missing))
}

/// `missing` lists the `programs` that are not on the PATH.
fn manual_installation(programs: &[&str], missing: &[&str]) -> String {
    if missing.is_empty() {
        return format!(
            "programs that the tests need are on the PATH, but do not work, and there is no apt-get \
             to download others: repair {}",
            programs.join(", ")
        );
    }
    format!(
        "the tests need programs that are not on the PATH, and there is no apt-get to download \
         them: install {}",
        missing.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_installation_always_names_programs() {
        let programs = ["erl", "rabbitmq-server"];
        let message = manual_installation(&programs, &["erl"]);
        assert!(message.ends_with("install erl"), "{message}");
        let message = manual_installation(&programs, &[]);
        assert!(message.ends_with("repair erl, rabbitmq-server"), "{message}");
    }
}
