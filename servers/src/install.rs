//! Makes sure that the programs which the tests need exist: what `cargo xtask servers` does.
//!
//! What the machine has is taken. The rest comes from Debian's packages: servers are unpacked into
//! `target/servers` (or `DQ_SERVERS_DIR`) and leave the machine as it is; the JDK and Maven, which
//! start no service, are installed. All of it is idempotent and quick the second time.

use std::path::Path;

use crate::debian::{self, Done};
use crate::program::{Program, on_path, place};
use crate::rabbitmq::Installation;

/// The name of the directory of Redis, and of what comes with it.
pub(crate) const REDIS: &str = "redis";

/// The name of the directory of RabbitMQ and its Erlang.
pub(crate) const RABBITMQ: &str = "rabbitmq";

/// All that RabbitMQ needs of Erlang. By name, so that the tree is complete where the machine has
/// some of it.
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

/// All programs, one after the other.
///
/// # Errors
///
/// Those of [`redis`], [`rabbitmq`] and [`java`].
pub fn everything() -> Result<(), String> {
    redis()?;
    rabbitmq()?;
    java()
}

/// `redis-server` and `redis-cli`, and `openssl` for the certificates of a server with TLS.
///
/// # Errors
///
/// A text that says what to install by hand, or which command failed.
pub fn redis() -> Result<(), String> {
    let programs = ["redis-server", "redis-cli", "openssl"];
    if programs.iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    let works = |root: &Path| {
        let lacking = programs.iter().filter(|program| on_path(program).is_none());
        lacking.copied().all(|name| {
            let argument = if name == "openssl" { "version" } else { "--version" };
            Program::unpacked(root, name).is_some_and(|program| program.runs(argument))
        })
    };
    let target = place().join(REDIS);
    if works(&target) {
        return Ok(());
    }
    packages_or(&programs, || {
        debian::unpack(&["redis-server", "redis-tools", "openssl"], &target, works)
    })
}

/// RabbitMQ with its tools, and the Erlang that runs them.
///
/// # Errors
///
/// A text that says what to install by hand, or which command failed.
pub fn rabbitmq() -> Result<(), String> {
    if Installation::of_machine().is_some_and(|installation| installation.runs()) {
        return Ok(());
    }
    let works = |root: &Path| Installation::unpacked(root).is_some_and(|found| found.runs());
    let target = place().join(RABBITMQ);
    if works(&target) {
        return Ok(());
    }
    let packages = [&ERLANG[..], &["rabbitmq-server"]].concat();
    packages_or(&["erl", "rabbitmq-server"], || debian::unpack(&packages, &target, works))
}

/// A JDK and Maven, for the tests beside Java's programs.
///
/// # Errors
///
/// A text that says what to install by hand, or which command failed.
pub fn java() -> Result<(), String> {
    let programs = ["java", "javac", "mvn"];
    if programs.iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    packages_or(&programs, || debian::install(&["default-jdk-headless", "maven"]))
}

/// Where there are no packages to be had, people must help.
fn packages_or(programs: &[&str], get: impl FnOnce() -> Done) -> Done {
    if debian::is_here() {
        return get();
    }
    let lacking = programs.iter().copied().filter(|program| on_path(program).is_none());
    let lacking: Vec<&str> = lacking.collect();
    Err(format!(
        "the tests need programs that are not on the PATH, and there is no apt-get to fetch them \
         with: please install {}",
        lacking.join(", ")
    ))
}
