//! The proxy process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::crew::Program;
use crate::run::Result;

/// A proxy between clients and server. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Proxy {
    child: Child,
    port: u16,
}

impl Proxy {
    pub(super) fn start(program: &Program, server: &str) -> Result<Self> {
        let failed = |error: std::io::Error| format!("the proxy: {error}");
        let mut child = Command::new(&program.path)
            .args(["proxy", server])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        let port = line.trim().parse().map_err(|_| format!("the proxy printed {line:?}"))?;
        Ok(Self { child, port })
    }

    pub(super) fn url(&self, url: &str, server: &str) -> String {
        url.replace(server, &format!("127.0.0.1:{}", self.port))
    }

    /// Gives the proxy a command; see `xtask/faults-client/src/proxy.rs`.
    pub(super) fn command(&mut self, command: &str) -> Result {
        let input = self.child.stdin.as_mut().ok_or("the proxy has no input")?;
        writeln!(input, "{command}").map_err(|error| format!("the proxy has ended: {error}"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
