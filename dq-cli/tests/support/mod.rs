//! Runs the program and its server in a separate directory.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

/// The program in a directory, without the test's environment variables.
pub(crate) fn dq(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.current_dir(directory);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DQ_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG");
    command
}

pub(crate) fn run(directory: &Path, args: &[&str]) -> Output {
    dq(directory).args(args).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
pub(crate) fn ok(directory: &Path, args: &[&str]) -> String {
    let output = run(directory, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
pub(crate) fn code(directory: &Path, args: &[&str]) -> (i32, String) {
    let output = run(directory, args);
    (output.status.code().unwrap(), text(&output.stderr))
}

/// A server that is killed at the end of the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) token: Option<String>,
    /// How many ended jobs of a queue are remembered; null if the store has the limit.
    pub(crate) history: Value,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(directory: &Path, args: &[&str]) -> Self {
        if args.contains(&"--address") {
            return Self::start_as_configured(directory, args);
        }
        Self::start_as_configured(directory, &[args, &["--address", "127.0.0.1:0"]].concat())
    }

    pub(crate) fn start_as_configured(directory: &Path, args: &[&str]) -> Self {
        // For requests.
        rustls::crypto::ring::default_provider().install_default().ok();
        let mut command = dq(directory);
        command.args(["serve", "--json"]).args(args).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        Self {
            child,
            address: started["address"].as_str().unwrap().to_owned(),
            token: started["token"].as_str().map(str::to_owned),
            history: started["history"].clone(),
            _stdout: stdout,
        }
    }

    pub(crate) fn api<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let token = self.token.as_deref().unwrap();
        [args, &["--api", &self.address, "--token", token]].concat()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.send(reqwest::Client::new().get(format!("{}{path}", self.address)))
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Value {
        let request = reqwest::Client::new().post(format!("{}{path}", self.address));
        let request = request.header("content-type", "application/json").body(body.to_owned());
        serde_json::from_str(&self.send(request)).unwrap()
    }

    fn send(&self, request: reqwest::RequestBuilder) -> String {
        let request = request.bearer_auth(self.token.as_deref().unwrap());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { request.send().await.unwrap().text().await.unwrap() })
    }

    #[cfg(unix)]
    pub(crate) fn signal(mut self, name: &str) -> std::process::ExitStatus {
        self.send_signal(name);
        self.child.wait().unwrap()
    }

    #[cfg(unix)]
    pub(crate) fn send_signal(&self, name: &str) {
        // The shell's own command: not every machine has a program of this name.
        let kill = format!("kill -s {name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
