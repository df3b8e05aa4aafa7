//! A node's command line tools.

use std::ffi::OsString;
use std::io::{Error, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::rabbitmq::cluster_identity::ClusterIdentity;

/// For a node's start, or a tool's reply, on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

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
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
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
        let stdout = text(&output.stdout);
        let value = stdout.strip_suffix("{ok, ok}").map(str::to_owned);
        value.ok_or_else(|| stdout + &text(&output.stderr))
    }

    /// Kills the tool after [`TIMEOUT`], because a frozen node never replies.
    fn run(&self, mut command: Command, input: &str) -> Result<Output, String> {
        command.current_dir(self.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error: Error| format!("a tool of RabbitMQ cannot be run: {error}");
        let mut tool = command.spawn().map_err(failed)?;
        // If the tool does not read its input, its output says why.
        let _ = tool.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        let (stdout, stderr) = (tool.stdout.take(), tool.stderr.take());
        thread::scope(|scope| {
            let stdout = scope.spawn(|| read(stdout));
            let stderr = scope.spawn(|| read(stderr));
            let status = wait(&mut tool).map_err(failed)?;
            let status = status.ok_or("no reply within two minutes")?;
            let read = |thread: ScopedJoinHandle<'_, Vec<u8>>| thread.join().unwrap_or_default();
            Ok(Output { status, stdout: read(stdout), stderr: read(stderr) })
        })
    }
}

fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

/// `None` if the process was killed after [`TIMEOUT`].
fn wait(child: &mut Child) -> Result<Option<ExitStatus>, Error> {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait().map(|_| None)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
