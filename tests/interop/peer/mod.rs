//! A real Redisson client in its own process, controlled over its standard input and output.
//!
//! The program is in `tests/interop/java`, the protocol is described in its `Main.java`.

mod build;
mod queue;
mod value;
mod version;

use std::collections::HashMap;
use std::fmt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

pub(crate) use queue::Queue;
pub(crate) use value::{Codec, Order, Type, Value};
pub(crate) use version::Version;

/// Maximum wait for an answer, beyond the timeout of the request itself.
const MAX_WAIT: Duration = Duration::from_secs(180);

/// A running client. It is killed when dropped, and exits with the process that started it.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    requests: tokio::sync::Mutex<ChildStdin>,
    waiting: Waiting,
    last: AtomicU64,
}

/// Channels for the answers, by request number. `None` after the process is gone.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerError {
    /// The exception, with its causes.
    Java(String),
    /// The process is gone or does not answer.
    Gone,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Java(text) => f.write_str(text),
            Self::Gone => f.write_str("the Java process is gone or does not answer"),
        }
    }
}

impl std::error::Error for PeerError {}

/// How the client connects.
#[derive(Clone, Debug)]
pub(crate) struct PeerOptions {
    version: Version,
    arguments: Vec<String>,
}

impl PeerOptions {
    /// The number of the database.
    pub(crate) fn db(self, number: u32) -> Self {
        self.with(format!("db={number}"))
    }

    /// The password of the server.
    pub(crate) fn password(self, password: &str) -> Self {
        self.with(format!("password={password}"))
    }

    /// A `NameMapper` which puts this before every name.
    pub(crate) fn prefix(self, prefix: &str) -> Self {
        self.with(format!("prefix={prefix}"))
    }

    fn with(mut self, argument: String) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Builds the program unless it is built, starts it, and returns when it is connected and has
    /// made a subscription. On a busy machine Redisson 3.20 sometimes fails at its first
    /// subscription and does not recover; then another process is started.
    ///
    /// # Panics
    /// If the program cannot be built or started, or does not connect.
    pub(crate) async fn start(self) -> Peer {
        const MAX_ATTEMPTS: usize = 4;
        for attempt in 1..=MAX_ATTEMPTS {
            let peer = self.launch().await;
            match peer.queue("subscribed", Codec::String).open().await {
                Ok(()) => return peer,
                Err(PeerError::Java(why)) if why.contains("subscription lock") => {
                    eprintln!("attempt {attempt}: {why}");
                }
                Err(error) => panic!("Redisson {} cannot subscribe: {error}", self.version),
            }
        }
        panic!("Redisson {} could not subscribe {MAX_ATTEMPTS} times", self.version)
    }

    /// Builds and starts the program, and waits until it is connected.
    async fn launch(&self) -> Peer {
        let Self { version, arguments } = self;
        let version = *version;
        let built = tokio::task::spawn_blocking(move || build::build(version)).await.unwrap();
        let directory = built.unwrap_or_else(|error| panic!("{error}"));
        let class_path = format!(
            "{}:{}/*",
            directory.join("classes").display(),
            directory.join("lib").display()
        );
        let mut child = Command::new("java")
            // Options for a short-lived process: fast start and few threads.
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"])
            .args(["-cp", &class_path, "interop.Main"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("java does not start ({error}): {}", build::REMEDY));
        // The program sends an answer with the number 0, its version, when it is connected.
        let (ready, connected) = oneshot::channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::from([(0, ready)]))));
        tokio::spawn(dispatch(child.stdout.take().unwrap(), Arc::clone(&waiting)));
        let requests = tokio::sync::Mutex::new(child.stdin.take().unwrap());
        let peer = Peer { child, requests, waiting, last: AtomicU64::new(0) };
        let running_version: String = wait(connected, MAX_WAIT).await.unwrap_or_else(|error| {
            panic!("Redisson {version} does not connect: {error}");
        });
        assert_eq!(
            running_version,
            version.to_string(),
            "the class path has another version of Redisson"
        );
        peer
    }
}

impl Peer {
    /// Starts a client of the Redis on this port of this machine: see [`PeerOptions::start`].
    pub(crate) async fn start(version: Version, redis_port: u16) -> Self {
        Self::options(version, redis_port).start().await
    }

    /// Starts a client with further options: see [`PeerOptions::start`].
    pub(crate) fn options(version: Version, redis_port: u16) -> PeerOptions {
        PeerOptions { version, arguments: vec![format!("127.0.0.1:{redis_port}")] }
    }

    /// A queue by name, not yet opened as a delayed queue.
    pub(crate) fn queue(&self, name: &str, codec: Codec) -> Queue<'_> {
        Queue::new(self, name, codec)
    }

    /// Kills the process with `SIGKILL`, as in a crash, and waits for its end.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    /// Sends a request and waits for its answer.
    async fn ask<T: DeserializeOwned>(&self, mut request: Request<'_>) -> Result<T, PeerError> {
        request.n = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        let max_wait = MAX_WAIT + Duration::from_millis(request.timeout_ms.unwrap_or(0));
        match &mut *self.waiting.lock().unwrap() {
            Some(waiting) => waiting.insert(request.n, sender),
            None => return Err(PeerError::Gone),
        };
        let mut line = serde_json::to_string(&request).expect("a request is JSON");
        line.push('\n');
        let written = self.requests.lock().await.write_all(line.as_bytes()).await;
        written.map_err(|_| PeerError::Gone)?;
        wait(answer, max_wait).await
    }
}

#[derive(Debug, Default, Serialize)]
struct Request<'a> {
    n: u64,
    command: &'a str,
    queue: &'a str,
    codec: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    collector: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    n: u64,
    #[serde(default)]
    ok: serde_json::Value,
    error: Option<String>,
}

/// Passes answers to their requests. The program runs requests in parallel, so answers arrive in
/// any order.
async fn dispatch(stdout: ChildStdout, waiting: Waiting) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer: Answer = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("not an answer ({error}): {line}"));
        let sender = waiting.lock().unwrap().as_mut().and_then(|all| all.remove(&answer.n));
        if let Some(sender) = sender {
            // Fails if the request was cancelled.
            let _ = sender.send(answer);
        }
    }
    waiting.lock().unwrap().take();
}

async fn wait<T: DeserializeOwned>(
    answer: oneshot::Receiver<Answer>,
    max_wait: Duration,
) -> Result<T, PeerError> {
    let Ok(Ok(answer)) = tokio::time::timeout(max_wait, answer).await else {
        return Err(PeerError::Gone);
    };
    match answer.error {
        None => Ok(serde_json::from_value(answer.ok).expect("the answer fits the request")),
        Some(error) => Err(PeerError::Java(error)),
    }
}
