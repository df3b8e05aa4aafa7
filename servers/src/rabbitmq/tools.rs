//! A node's command line tools.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::TIMEOUT;
use crate::rabbitmq::cluster_identity::ClusterIdentity;
use crate::rabbitmq::server::RabbitMq;

pub(super) const LOOPBACK: &str = "{127,0,0,1}";

/// The environment of a node and of its tools. All paths are in the node's directory.
pub(super) fn environment(
    identity: &ClusterIdentity,
    node: &str,
    dir: &Path,
) -> Vec<(&'static str, OsString)> {
    let file = |name: &str| OsString::from(dir.join(name));
    vec![
        ("HOME", dir.into()),
        ("ERL_EPMD_PORT", identity.epmd.to_string().into()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
        ("ERL_INETRC", file("inetrc")),
        ("ERL_MAX_PORTS", "65536".into()),
        ("ERL_MAX_ETS_TABLES", "50000".into()),
        // Writing a crash dump takes longer than the test.
        ("ERL_CRASH_DUMP_SECONDS", "0".into()),
        ("RABBITMQ_NODENAME", node.into()),
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

impl RabbitMq {
    /// Runs `rabbitmqctl` and returns its output. Panics if it fails or takes longer than two
    /// minutes.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let installation = &self.identity.installation;
        let mut command = installation.erl(self.environment()).command();
        command.args(["-boot", "start_clean", "-noinput", "-noshell", "-hidden"]);
        command.args(["-start_epmd", "false", "-kernel", "inet_dist_use_interface", LOOPBACK]);
        command.args(["-run", "escript", "start", "-escript", "main", "rabbitmqctl_escript"]);
        command.arg("-extra").arg(installation.ctl()).arg("--quiet").args(arguments);
        match self.run(command, "") {
            Ok(output) if output.status.success() => text(output.stdout),
            Ok(Output { stdout, stderr, .. }) => {
                let output = text(stdout) + &text(stderr);
                panic!("rabbitmqctl {arguments:?} failed:\n{output}")
            }
            Err(error) => panic!("rabbitmqctl {arguments:?} failed:\n{error}"),
        }
    }

    /// Evaluates comma-separated Erlang expressions and returns the last value in Erlang syntax.
    ///
    /// This is a hundred times faster than [`ctl`](Self::ctl). Panics if an expression fails or
    /// takes longer than two minutes.
    #[track_caller]
    pub fn eval(&self, expressions: &str) -> String {
        self.try_eval(expressions).unwrap_or_else(|error| panic!("{expressions} failed:\n{error}"))
    }

    /// Like [`eval`](Self::eval); the error says why an expression failed.
    pub fn try_eval(&self, expressions: &str) -> Result<String, String> {
        // Two tools with the same name cannot connect at once.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("dq-{}-{call}", std::process::id());
        let erl_call = self.identity.installation.program("erl_call", self.environment());
        let mut command = erl_call.command();
        command.args(["-sname", self.node(), "-h", &name, "-fetch_stdout", "-e"]);
        let expressions = expressions.trim_end().trim_end_matches('.');
        let script = format!("io:put_chars(io_lib:format(\"~tp\", [begin {expressions} end])).\n");
        let Output { stdout, stderr, .. } = self.run(command, &script)?;
        let stdout = text(stdout);
        // A successful output ends with `{ok, ok}`, the result of `io:put_chars`. The exit code
        // does not tell.
        let value = stdout.strip_suffix("{ok, ok}").map(str::to_owned);
        value.ok_or_else(|| stdout + &text(stderr))
    }

    fn environment(&self) -> Vec<(&'static str, OsString)> {
        environment(&self.identity, self.node(), self.dir())
    }

    /// Kills the tool after [`TIMEOUT`], because a frozen node never replies.
    fn run(&self, mut command: Command, input: &str) -> Result<Output, String> {
        let failed = |error: Error| format!("a tool of RabbitMQ cannot be run: {error}");
        // Files, because a tool would wait for the reader of a full pipe.
        let files = || Ok((tempfile::tempfile()?, tempfile::tempfile()?));
        let (stdout, stderr) = files().map_err(failed)?;
        command.current_dir(self.dir()).stdin(Stdio::piped());
        command.stdout(stdout.try_clone().map_err(failed)?);
        command.stderr(stderr.try_clone().map_err(failed)?);
        let mut tool = command.spawn().map_err(failed)?;
        // If the tool does not read its input, its output says why.
        let _ = tool.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = tool.try_wait().map_err(failed)? {
                return Ok(Output { status, stdout: read(stdout), stderr: read(stderr) });
            }
            if Instant::now() > deadline {
                tool.kill().and_then(|()| tool.wait()).map_err(failed)?;
                return Err("no reply within two minutes".to_owned());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn read(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    bytes
}

fn text(output: Vec<u8>) -> String {
    String::from_utf8_lossy(&output).into_owned()
}
