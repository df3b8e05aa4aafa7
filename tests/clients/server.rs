//! `dq serve` as a process, and requests to it.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything takes on a busy machine.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(300);

/// The token of an operator, who may also claim jobs.
pub(crate) const TOKEN: &str = "an-operator-token";

/// `DQ_BIN`, or what Cargo has built beside this test, which is in `target/PROFILE/deps`.
pub(crate) fn program() -> PathBuf {
    let built = || {
        let test = std::env::current_exe().expect("the test knows its own path");
        test.ancestors().nth(2).expect("a profile's directory").join("dq")
    };
    let program = std::env::var_os("DQ_BIN").map_or_else(built, PathBuf::from);
    assert!(program.is_file(), "{} is missing: `cargo build -p dq-cli`", program.display());
    program
}

/// A `dq serve`. Dropping it kills the process.
pub(crate) struct Server {
    pub(crate) address: String,
    directory: TempDir,
    process: Option<Child>,
}

impl Server {
    /// Starts a server on the store with this URL.
    pub(crate) fn start(store: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (kind, _) = store.split_once(':').expect("a URL");
        let config = format!(
            "[backend]\ntype = \"{kind}\"\nurl = \"{store}\"\n\
             [defaults]\nhistory = {{ max = 10000 }}\nmax_losses = 1000\n\
             backoff = {{ initial = \"50ms\", factor = 1.0, max = \"50ms\", jitter = 0.0 }}\n\
             [serve.tokens.test]\nrole = \"operator\"\ntoken = \"{TOKEN}\"\n"
        );
        std::fs::write(directory.path().join("dq.toml"), config).unwrap();
        let mut server = Self { address: String::new(), directory, process: None };
        loop {
            server.address = format!("127.0.0.1:{}", dq_servers::free_port());
            match server.try_restart() {
                Ok(()) => return server,
                // Another process was faster.
                Err(reason) => assert!(reason.contains("in use"), "{reason}"),
            }
        }
    }

    /// Starts the server again, at its address, and waits until it accepts requests.
    pub(crate) fn restart(&mut self) {
        self.try_restart().unwrap();
    }

    /// The error is the server's, which does not start without its store.
    pub(crate) fn try_restart(&mut self) -> Result<(), String> {
        let log = std::fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let mut child = Command::new(program())
            .args(["serve", "--json", "--address", &self.address])
            .current_dir(self.directory.path())
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.process = Some(child);
        if line.contains(&self.address) {
            return Ok(());
        }
        self.kill();
        Err(std::fs::read_to_string(self.log()).unwrap())
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.as_ref().expect("a running server").id()
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Ends the server by SIGTERM, and waits until it has.
    pub(crate) fn stop(&mut self) {
        signal(self.id(), "TERM");
        let (mut process, start) = (self.process.take().unwrap(), Instant::now());
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < MAX_WAIT, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(0), "{}", std::fs::read_to_string(self.log()).unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal by name, such as `TERM`.
pub(crate) fn signal(process: u32, name: &str) {
    // The shell's builtin: not every machine has the `kill` program.
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &process.to_string()]);
    assert!(shell.status().unwrap().success());
}

/// Makes a request on a new connection, with a body of JSON unless it is null. `headers` are whole
/// lines. Returns the status and the body.
pub(crate) async fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &Value,
) -> io::Result<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answer = tokio::time::timeout(MAX_WAIT, exchange).await??;
    parse(&answer).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Returns nothing if the answer is incomplete.
fn parse(answer: &str) -> Option<(u16, Value)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = if status == 204 { "null" } else { body };
    Some((status, serde_json::from_str(body).ok()?))
}

/// What a worker does with a job: its payload.
pub(crate) fn work(millis: u64, plan: &str) -> Value {
    json!({ "work": millis, "plan": plan })
}

/// Schedules a job, and repeats the request until it is answered. Returns the job's id.
pub(crate) async fn schedule(address: &str, queue: &str, payload: Value, delay: u64) -> String {
    let number = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let key = format!("idempotency-key: {number}\r\n");
    let path = format!("/v1/queues/{queue}/jobs");
    let body = json!({ "payload": payload, "due": format!("{delay}ms") });
    let start = Instant::now();
    loop {
        let answer = request(address, "POST", &path, &key, &body).await;
        if let Ok((200 | 201, answer)) = answer {
            return answer["id"].as_str().unwrap().to_owned();
        }
        assert!(start.elapsed() < MAX_WAIT, "the job is not stored: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until so many jobs are done in the queues A and B, and no other is there.
pub(crate) async fn wait_until_done(address: &str, jobs: usize) {
    let start = Instant::now();
    let sum = |queues: &[Value], names: &[&str]| -> u64 {
        let values = queues.iter().flat_map(|queue| names.iter().map(|name| &queue[*name]));
        values.filter_map(Value::as_u64).sum()
    };
    loop {
        let answer = request(address, "GET", "/v1/queues", "", &Value::Null).await;
        if let Ok((200, Value::Array(queues))) = &answer
            && sum(queues, &["scheduled", "ready", "running", "dead"]) == 0
        {
            assert_eq!(sum(queues, &["done_total"]), jobs as u64, "done jobs: {queues:?}");
            return;
        }
        assert!(start.elapsed() < MAX_WAIT, "the jobs are not done: {answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A file of this package.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(path)
}
