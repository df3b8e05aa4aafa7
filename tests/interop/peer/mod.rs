//! A real Redisson client in its own process, controlled over standard input and output.
//!
//! The program is in `tests/interop/java`; its `Main.java` describes the protocol.

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

/// Maximum wait for an answer, in addition to the request's own timeout.
const MAX_WAIT: Duration = Duration::from_secs(180);

/// A running client. Dropping it kills the process, which also exits with its parent.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    requests: tokio::sync::Mutex<ChildStdin>,
    waiting: Waiting,
    last: AtomicU64,
}

/// Answer channels by request number; `None` once the process is gone.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerError {
    Java(String),
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

#[derive(Clone, Debug)]
pub(crate) struct PeerOptions {
    version: Version,
    arguments: Vec<String>,
}

impl PeerOptions {
    pub(crate) fn db(self, number: u32) -> Self {
        self.with(format!("db={number}"))
    }

    pub(crate) fn password(self, password: &str) -> Self {
        self.with(format!("password={password}"))
    }

    /// A `NameMapper` with this prefix.
    pub(crate) fn prefix(self, prefix: &str) -> Self {
        self.with(format!("prefix={prefix}"))
    }

    fn with(mut self, argument: String) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Builds the program if needed, starts it, and waits until it is connected and has subscribed.
    /// On a busy machine, Redisson 3.20 sometimes fails at its first subscription and does not
    /// recover; then another process starts.
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
        // Once connected, the program sends answer number 0: its version.
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
    pub(crate) async fn start(version: Version, redis_port: u16) -> Self {
        Self::options(version, redis_port).start().await
    }

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
