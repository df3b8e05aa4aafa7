//! Installs the programs that the tests need, as `cargo xtask servers` does.
//!
//! Programs on the machine are used if they exist. Others come from Debian's packages: servers are
//! unpacked into `target/servers` (or `DQ_SERVERS_DIR`) and not installed; the JDK and Maven, which
//! start no service, are installed. All functions are idempotent and fast if nothing is missing.

use std::path::Path;

use crate::debian;
use crate::program::{Program, RABBITMQ, REDIS, on_path, unpacked_programs};
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

/// Installs all programs.
///
/// # Errors
///
/// Those of [`redis`], [`rabbitmq`] and [`java`].
pub fn everything() -> Result<(), String> {
    redis()?;
    rabbitmq()?;
    java()
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

/// Runs `get` if Debian's package tools are available; otherwise the error names the missing
/// programs.
fn with_packages(programs: &[&str], get: impl FnOnce() -> debian::Result) -> debian::Result {
    if debian::is_available() {
        return get();
    }
    let missing = programs.iter().copied().filter(|program| on_path(program).is_none());
    let missing: Vec<&str> = missing.collect();
    Err(format!(
        "the tests need programs that are not on the PATH, and there is no apt-get to download \
         them: install {}",
        missing.join(", ")
    ))
}
