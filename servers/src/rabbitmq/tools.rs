//! A node's command line tools.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::TIMEOUT;
use crate::rabbitmq::cluster_identity::ClusterIdentity;

pub(super) const LOOPBACK: &str = "{127,0,0,1}";

#[derive(Debug)]
pub(super) struct Tools<'a> {
    pub(super) identity: &'a ClusterIdentity,
    pub(super) node: &'a str,
    pub(super) dir: &'a Path,
}

impl Tools<'_> {
    /// All paths are in the node's directory.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let file = |name: &str| OsString::from(self.dir.join(name));
        vec![
            ("HOME", self.dir.into()),
            ("ERL_EPMD_PORT", self.identity.epmd.to_string().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_INETRC", file("inetrc")),
            ("ERL_MAX_PORTS", "65536".into()),
            ("ERL_MAX_ETS_TABLES", "50000".into()),
            // Writing a crash dump takes longer than the test.
            ("ERL_CRASH_DUMP_SECONDS", "0".into()),
            ("RABBITMQ_NODENAME", self.node.into()),
            ("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced.config")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", file("data")),
            ("RABBITMQ_LOG_BASE", file("logs")),
            ("RABBITMQ_LOGS", "-".into()),
            // Replaces the machine's file in /etc.
            ("RABBITMQ_CONF_ENV_FILE", file("rabbitmq-env.conf")),
        ]
    }

    /// The error is also the output.
    pub(super) fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let installation = &self.identity.installation;
        let mut command = installation.erl(self.environment()).command();
        command.args(["-boot", "start_clean", "-noinput", "-noshell", "-hidden"]);
        command.args(["-start_epmd", "false", "-kernel", "inet_dist_use_interface", LOOPBACK]);
        command.args(["-run", "escript", "start", "-escript", "main", "rabbitmqctl_escript"]);
        command.arg("-extra").arg(installation.ctl()).arg("--quiet").args(arguments);
        let output = self.run(command, "")?;
        if output.succeeded { Ok(output.stdout) } else { Err(output.stdout + &output.stderr) }
    }

    /// See [`RabbitMq::eval`](super::RabbitMq::eval). The error is the output.
    pub(super) fn eval(&self, expressions: &str) -> Result<String, String> {
        // Two tools with the same name cannot connect at once.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("dq-{}-{call}", std::process::id());
        let mut command = self.identity.installation.erl_call(self.environment()).command();
        command.args(["-sname", self.node, "-h", &name, "-fetch_stdout", "-e"]);
        let expressions = expressions.trim_end().trim_end_matches('.');
        let script = format!("io:put_chars(io_lib:format(\"~tp\", [begin {expressions} end])).\n");
        let output = self.run(command, &script)?;
        // A successful output ends with `{ok, ok}`, the result of `io:put_chars`. The exit code
        // does not tell.
        let value = output.stdout.strip_suffix("{ok, ok}").map(str::to_owned);
        value.ok_or_else(|| output.stdout + &output.stderr)
    }

    /// Kills the tool after [`TIMEOUT`], because a frozen node never replies.
    fn run(&self, mut command: Command, input: &str) -> Result<Output, String> {
        let failed = |error: Error| format!("a tool of RabbitMQ cannot be run: {error}");
        // Files, because a tool would wait for the reader of a full pipe.
        let files = || Ok((tempfile::tempfile()?, tempfile::tempfile()?));
        let (stdout, stderr) = files().map_err(failed)?;
        command.current_dir(self.dir).stdin(Stdio::piped());
        command.stdout(stdout.try_clone().map_err(failed)?);
        command.stderr(stderr.try_clone().map_err(failed)?);
        let mut tool = command.spawn().map_err(failed)?;
        // If the tool does not read its input, its output says why.
        let _ = tool.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = tool.try_wait().map_err(failed)? {
                let succeeded = status.success();
                return Ok(Output { succeeded, stdout: read(stdout), stderr: read(stderr) });
            }
            if Instant::now() > deadline {
                tool.kill().and_then(|()| tool.wait()).map_err(failed)?;
                return Err("no reply within two minutes".to_owned());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Output {
    succeeded: bool,
    stdout: String,
    stderr: String,
}

fn read(mut file: File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
