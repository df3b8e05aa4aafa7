//! `dq serve`, for workers in other languages.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::run::run;
use crate::measure::Result;

pub(super) const TOKEN: &str = "the-token-of-workers";

const PATIENCE: Duration = Duration::from_secs(30);

/// A server on a free port. Dropping it kills it.
pub(crate) struct Server {
    process: Child,
    pub(super) url: String,
}

impl Server {
    /// Builds `dq` beside this program.
    pub(super) fn build() -> Result<()> {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let build = ["build", "--quiet", "--package", "dq-cli", "--profile", profile];
        run(Command::new("cargo").args(build)).map(drop)
    }

    /// Starts `dq serve` on a Redis server.
    pub(super) fn start(redis: &str) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("dq");
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut serve = Command::new(program);
        serve.args(["serve", "--url", &format!("redis://{redis}/0"), "--address"]);
        serve.arg(address.to_string()).env("DQ_TOKEN", TOKEN);
        let process = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Self { process, url: format!("http://{address}") };
        let started = Instant::now();
        while let Err(error) = TcpStream::connect(address) {
            if started.elapsed() > PATIENCE {
                return Err(format!("dq serve does not listen: {error}").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
