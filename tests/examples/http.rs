//! HTTP requests to example servers.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

/// Makes one request on a new connection. Returns the status and the body: JSON, or a string for
/// plain text.
pub(crate) fn request(address: &str, method: &str, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: 0\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
}
