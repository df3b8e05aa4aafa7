//! Installs the programs that the tests need, for `cargo xtask servers`.
//!
//! Programs on the machine are used if they exist. Others come from Debian packages: servers are
//! unpacked into `target/servers` (or `DQ_SERVERS_DIR`). The JDK, Maven, Python and
//! Node.js start no service, so they are installed. All functions are idempotent, and fast if
//! nothing is missing.
//!
//! Each error is a message: how to install manually, or which command failed.

use std::process::Command;

use crate::debian;
use crate::program::on_path;
use crate::pypi::PythonPackage;
use crate::{browser, nginx, npm, postgres, prometheus, rabbitmq, redis};

/// Installs all programs, and packages from PyPI and npm.
pub fn everything() -> Result<(), String> {
    redis()?;
    rabbitmq()?;
    postgres()?;
    browser::install()?;
    nginx::PACKAGE.install()?;
    prometheus::PACKAGE.install()?;
    java()?;
    python()?;
    node()?;
    npm::install()?;
    npm::install_node()?;
    PythonPackage::ALL.into_iter().try_for_each(|package| package.install().map(drop))
}

/// Installs `redis-server`, `redis-cli`, and `openssl` for TLS certificates.
pub fn redis() -> Result<(), String> {
    redis::PACKAGE.install()
}

/// Installs RabbitMQ with its tools, and Erlang.
pub fn rabbitmq() -> Result<(), String> {
    rabbitmq::install()
}

/// Installs PostgreSQL with its tools, and pgbouncer.
pub fn postgres() -> Result<(), String> {
    postgres::install()
}

fn java() -> Result<(), String> {
    if ["java", "javac", "mvn"].iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    debian::require("java, javac and mvn")?;
    debian::install(&["default-jdk-headless", "maven"])
}

fn python() -> Result<(), String> {
    // On Debian, the module venv is there without python3-venv, but not ensurepip, which it needs.
    let works = ["pip", "ensurepip"].iter().all(|module| {
        let mut python = Command::new("python3");
        python.args(["-m", module, "--version"]);
        python.output().is_ok_and(|output| output.status.success())
    });
    if works {
        return Ok(());
    }
    debian::require("python3 with pip and venv")?;
    debian::install(&["python3", "python3-pip", "python3-venv"])
}

fn node() -> Result<(), String> {
    if ["node", "npm"].iter().all(|program| on_path(program).is_some()) {
        return Ok(());
    }
    debian::require("node and npm")?;
    debian::install(&["nodejs", "npm"])
}
