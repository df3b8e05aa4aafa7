//! An example that is an HTTP server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use dq::Dq;
use serde_json::{Value, json};

use crate::program::{MAX_WAIT, Program};

pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(example: impl AsRef<Path>, dir: &Path, arguments: &[&str]) -> Self {
        let arguments = [&["--listen", "127.0.0.1:0"], arguments].concat();
        let program = Program::start(example, dir, &arguments);
        let line = program.line().expect("the example prints its address");
        let address = line.strip_prefix("listening on http://").expect("an address").to_owned();
        Self { program, address }
    }

    /// Makes one request on a new connection. Returns the status and the body: JSON, or a string
    /// for plain text.
    pub(crate) fn request(&self, method: &str, path: &str) -> (u16, Value) {
        request(&self.address, method, path, "").expect("the example answers")
    }
}

/// Makes one request on a new connection. `header` is empty, or a line with its end.
pub(crate) fn request(
    address: &str,
    method: &str,
    path: &str,
    header: &str,
) -> std::io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(MAX_WAIT))?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(stream, "{head}{header}Content-Length: 0\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let status = response.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (_, body) = response.split_once("\r\n\r\n").unwrap_or_default();
    let body = serde_json::from_str(body).unwrap_or_else(|_| json!(body));
    Ok((status.ok_or(std::io::ErrorKind::UnexpectedEof)?, body))
}

/// The jobs in a queue of a SQLite file, also dead ones.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn stored_in(file: &Path, queue: &str) -> u64 {
    let dq = Dq::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    let stats = dq.queue(queue).unwrap().stats().await.unwrap();
    dq.close().await.unwrap();
    stats.stored()
}

/// Each signal must stop the server, close its store and leave the job of `request` in it.
pub(crate) fn stops_at_signals(
    example: &str,
    arguments: &[&str],
    request: (&str, &str),
    (file, queue): (&str, &str),
) {
    for signal in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start(example, dir.path(), arguments);
        assert!([201, 202].contains(&server.request(request.0, request.1).0), "SIG{signal}");
        server.program.signal(signal);
        assert!(server.program.wait().success(), "SIG{signal}");
        assert_eq!(server.program.rest(), Vec::<String>::new(), "SIG{signal}");
        let file = dir.path().join(file);
        assert!(!file.with_extension("db-wal").exists(), "SIG{signal} closes the store");
        assert_eq!(stored_in(&file, queue), 1, "SIG{signal}");
    }
}
