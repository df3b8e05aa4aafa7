//! What is run to speak to a node as its operator would.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rabbitmq::family::Family;

/// Where Erlang listens for other nodes and for tools.
pub(super) const LOOPBACK: &str = "{127,0,0,1}";

/// The tools for one node.
#[derive(Debug)]
pub(super) struct Tools<'a> {
    pub(super) family: &'a Family,
    pub(super) node: &'a str,
    pub(super) dir: &'a Path,
}

impl Tools<'_> {
    /// What the node and its tools find in their environment: all in the node's directory.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let file = |name: &str| OsString::from(self.dir.join(name));
        vec![
            ("HOME", self.dir.into()),
            ("ERL_EPMD_PORT", self.family.epmd.to_string().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_INETRC", file("inetrc")),
            ("ERL_MAX_PORTS", "65536".into()),
            ("ERL_MAX_ETS_TABLES", "50000".into()),
            // No dump after a crash: it would take longer than the test.
            ("ERL_CRASH_DUMP_SECONDS", "0".into()),
            ("RABBITMQ_NODENAME", self.node.into()),
            ("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced.config")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file("enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", file("data")),
            ("RABBITMQ_LOG_BASE", file("logs")),
            ("RABBITMQ_LOGS", "-".into()),
            // Not the machine's, in /etc.
            ("RABBITMQ_CONF_ENV_FILE", file("rabbitmq-env.conf")),
        ]
    }

    /// What `rabbitmqctl` prints. The error is that too.
    pub(super) fn ctl(&self, words: &[&str]) -> Result<String, String> {
        let installation = &self.family.installation;
        let mut command = installation.erl(self.environment()).command();
        command.args(["-boot", "start_clean", "-noinput", "-noshell", "-hidden"]);
        command.args(["-start_epmd", "false", "-kernel", "inet_dist_use_interface", LOOPBACK]);
        command.args(["-run", "escript", "start", "-escript", "main", "rabbitmqctl_escript"]);
        command.arg("-extra").arg(installation.ctl()).arg("--quiet").args(words);
        let output = self.run(command, "")?;
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }

    /// The value of Erlang expressions.
    pub(super) fn eval(&self, expressions: &str) -> Result<String, String> {
        // Two tools of the same name would not be let in at a time.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("dq-{}-{call}", std::process::id());
        let mut command = self.family.installation.erl_call(self.environment()).command();
        command.args(["-sname", self.node, "-h", &name, "-fetch_stdout", "-e"]);
        let expressions = expressions.trim_end().trim_end_matches('.');
        let script = format!("io:put_chars(io_lib:format(\"~tp\", [begin {expressions} end])).\n");
        let output = self.run(command, &script)?;
        // What is printed, then what became of it; the exit code says nothing.
        let said = text(&output.stdout);
        let value = said.strip_suffix("{ok, ok}").map(str::to_owned);
        value.ok_or_else(|| said + &text(&output.stderr))
    }

    fn run(&self, mut command: Command, input: &str) -> Result<Output, String> {
        command.current_dir(self.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = command.spawn().and_then(|mut child| {
            // A tool that does not care to read says why.
            let _ = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
            child.wait_with_output()
        });
        run.map_err(|error| format!("{command:?} cannot be run: {error}"))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
