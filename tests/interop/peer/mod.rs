//! A real Redisson client in its own process, controlled over standard input and output.
//!
//! The program is in `tests/interop/java`; its `Main.java` describes the protocol.

mod queue;
mod value;
mod version;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

pub(crate) use queue::Queue;
pub(crate) use value::{Codec, JsonClass, Order, Value};
pub(crate) use version::Version;

/// Longer than any request takes, with its own timeout.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// A running client. Dropping it kills the process, which also exits with its parent.
pub(crate) struct Peer {
    child: Child,
    pipes: Mutex<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    ok: Json,
    error: Option<String>,
}

impl Peer {
    /// Builds the program if needed, starts it, and waits until it is connected and has subscribed.
    /// On a busy machine, Redisson 3.20 sometimes fails at its first subscription and does not
    /// recover; then another process starts.
    pub(crate) async fn start(version: Version, redis_port: u16) -> Self {
        Self::start_with_prefix(version, redis_port, None).await
    }

    /// As [`start`](Self::start). A `NameMapper` puts the prefix before all names.
    pub(crate) async fn start_with_prefix(
        version: Version,
        redis_port: u16,
        prefix: Option<&str>,
    ) -> Self {
        const MAX_ATTEMPTS: usize = 4;
        for attempt in 1..=MAX_ATTEMPTS {
            let peer = launch(version, redis_port, prefix).await;
            match peer.queue("subscribed", Codec::String).try_ask::<Json>("open").await {
                Ok(_) => return peer,
                Err(why) if why.contains("subscription lock") => {
                    eprintln!("attempt {attempt}: {why}");
                }
                Err(error) => panic!("Redisson {version} cannot subscribe: {error}"),
            }
        }
        panic!("Redisson {version} could not subscribe {MAX_ATTEMPTS} times")
    }

    /// A queue by name, not yet opened as a delayed queue.
    pub(crate) fn queue(&self, name: &str, codec: Codec) -> Queue<'_> {
        Queue::new(self, name, codec)
    }

    /// Kills the process with `SIGKILL`, as in a crash, and waits for its end.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    async fn ask<T: DeserializeOwned>(&self, request: &Json) -> Result<T, String> {
        let mut pipes = self.pipes.lock().await;
        let line = format!("{request}\n");
        pipes.0.write_all(line.as_bytes()).await.map_err(|error| error.to_string())?;
        answer(&mut pipes.1).await
    }
}

async fn launch(version: Version, redis_port: u16, prefix: Option<&str>) -> Peer {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/java");
    let property = format!("-Dredisson.version={version}");
    let build = move || dq_servers::java_program(&sources, "redisson", Some(&property));
    let mut child = Command::from(spawn_blocking(build).await.unwrap())
        .arg("interop.Main")
        .arg(format!("127.0.0.1:{redis_port}"))
        .args(prefix)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("java does not start: {error}"));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Once connected, the program sends its version.
    let connected: Result<String, String> = answer(&mut lines).await;
    assert_eq!(connected, Ok(version.to_string()), "Redisson {version} connects");
    let pipes = Mutex::new((child.stdin.take().unwrap(), lines));
    Peer { child, pipes }
}

async fn answer<T: DeserializeOwned>(
    lines: &mut Lines<BufReader<ChildStdout>>,
) -> Result<T, String> {
    let line = tokio::time::timeout(MAX_WAIT, lines.next_line()).await;
    let Ok(Ok(Some(line))) = line else {
        return Err("the Java process is gone or does not answer".to_owned());
    };
    let answer: Answer = serde_json::from_str(&line)
        .unwrap_or_else(|error| panic!("not an answer ({error}): {line}"));
    match answer.error {
        None => Ok(serde_json::from_value(answer.ok).expect("the answer fits the request")),
        Some(error) => Err(error),
    }
}
