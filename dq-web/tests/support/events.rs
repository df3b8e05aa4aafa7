//! Responses with server-sent events, read as plain HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::VIEWER;

/// How long a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) async fn open(address: SocketAddr, prefix: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {prefix}/v1/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {VIEWER}\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads events until one contains the text, and reconnects when a response ends, as browsers do.
/// Returns the open response and the text read.
pub(crate) async fn wait_for(address: SocketAddr, prefix: &str, text: &str) -> (TcpStream, String) {
    let (mut read, mut start) = (String::new(), 0);
    let mut stream = open(address, prefix).await;
    let waiting = async {
        while !read.contains(text) {
            let mut part = [0; 4096];
            match stream.read(&mut part).await.unwrap() {
                0 => {
                    let response = &read[start..];
                    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
                    start = read.len();
                    stream = open(address, prefix).await;
                }
                length => read += &String::from_utf8_lossy(&part[..length]),
            }
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.unwrap_or_else(|_| panic!("{text:?} does not arrive"));
    (stream, read)
}
