//! Installs the programs that the tests need, as `cargo xtask servers` does.
//!
//! Programs on the machine are used if they exist. Others come from Debian's packages: servers are
//! unpacked into `target/servers` (or `DQ_SERVERS_DIR`) and not installed; the JDK, Maven and Python,
//! which start no service, are installed. All functions are idempotent and fast if nothing is missing.

use std::path::Path;
use std::process::Command;

use crate::browser::Browser;
use crate::debian;
use crate::program::{
    BROWSER, NGINX, PROMETHEUS, Program, RABBITMQ, REDIS, on_path, unpacked_programs,
};
use crate::pypi::PythonPackage;
use crate::rabbitmq::Installation;

/// The packages of Erlang that RabbitMQ needs. All are unpacked, even if the machine has some of
/// them, so that the unpacked tree is complete.
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

/// Installs all programs, and the packages of PyPI.
///
/// # Errors
///
/// Those of [`redis`], [`rabbitmq`], [`browser`], [`nginx`], [`prometheus`], [`java`], [`python`] and
/// [`PythonPackage::install`].
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

/// Installs `redis-server`, `redis-cli`, and `openssl` for the certificates of a server with TLS.
///
/// # Errors
///
/// A message that says what to install manually, or which command failed.
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
/// A message that says what to install manually, or which command failed.
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
/// A message that says what to install manually, or which command failed.
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

/// Installs nginx, for the tests behind a proxy.
///
/// # Errors
///
/// A message that says what to install manually, or which command failed.
pub fn nginx() -> Result<(), String> {
    unpacked(NGINX, "nginx", "-v", "nginx-light")
}

/// Installs `promtool`, which checks metrics and rules.
///
/// # Errors
///
/// A message that says what to install manually, or which command failed.
pub fn prometheus() -> Result<(), String> {
    unpacked(PROMETHEUS, "promtool", "--version", "prometheus")
}

/// Installs a JDK and Maven, for the interoperability tests with Java clients.
///
/// # Errors
///
/// A message that says what to install manually, or which command failed.
pub fn java() -> Result<(), String> {
    let programs = ["java", "javac", "mvn"];
    if programs.iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    with_packages(&programs, || debian::install(&["default-jdk-headless", "maven"]))
}

/// Installs Python with pip, for the tests of signatures with a library of others.
///
/// # Errors
///
/// A message that says what to install manually, or which command failed.
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

/// Unpacks the package of one program, unless the machine has it. With `argument` it shows that it
/// starts.
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

/// Runs `get` if Debian's package tools are available; otherwise the error names the programs that
/// are missing or do not work.
fn with_packages(programs: &[&str], get: impl FnOnce() -> debian::Result) -> debian::Result {
    if debian::is_available() {
        return get();
    }
    let missing: Vec<&str> =
        programs.iter().copied().filter(|program| on_path(program).is_none()).collect();
    Err(manual_installation(programs, &missing))
}

/// The message for a machine without Debian's package tools: `missing` are those of `programs` that
/// are not on the PATH.
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
