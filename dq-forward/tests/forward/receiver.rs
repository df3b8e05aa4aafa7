//! A webhook receiver with fixed answers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(crate) const HANG: &str = "hang";
/// The body never ends.
pub(crate) const UNFINISHED: &str = "HTTP/1.1 410 Gone\r\nContent-Length: 99\r\n\r\nmoved";

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// `name` is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug, Default)]
struct Received {
    connections: usize,
    requests: Vec<Request>,
}

/// Stops on drop.
pub(crate) struct Receiver {
    scheme: &'static str,
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Received>>,
    _server: JoinSet<()>,
}

impl Receiver {
    /// Sends the answers in order and repeats the last one. Closes the connection after each,
    /// except after [`HANG`] and [`UNFINISHED`].
    pub(crate) async fn start(address: &str, answers: &[&str]) -> Self {
        Self::serve(address, answers, None).await
    }

    /// Like [`start`](Self::start) with TLS, using `server.crt` and `server.key` from `directory`.
    pub(crate) async fn start_tls(address: &str, answers: &[&str], directory: &Path) -> Self {
        let certificate = CertificateDer::from_pem_file(directory.join("server.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(directory.join("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Self::serve(address, answers, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn serve(address: &str, answers: &[&str], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Received>> = Arc::default();
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut server = JoinSet::new();
        server.spawn(accept_loop(listener, tls, answers, Arc::clone(&received)));
        Self { scheme, address, received, _server: server }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.received.lock().unwrap().connections
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.received.lock().unwrap().requests.clone()
    }
}

async fn accept_loop(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    answers: Vec<String>,
    received: Arc<Mutex<Received>>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        received.lock().unwrap().connections += 1;
        let (tls, answers, received) = (tls.clone(), answers.clone(), Arc::clone(&received));
        connections.spawn(async move {
            match tls {
                None => answer(stream, &answers, &received).await,
                // A client that distrusts the certificate ends the handshake.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        answer(stream, &answers, &received).await;
                    }
                }
            }
        });
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answers: &[String],
    received: &Mutex<Received>,
) {
    let Some(request) = read(&mut stream).await else { return };
    let number = {
        let mut received = received.lock().unwrap();
        received.requests.push(request);
        received.requests.len() - 1
    };
    let answer = &answers[number.min(answers.len() - 1)];
    if answer == HANG {
        std::future::pending::<()>().await;
    }
    let _ = stream.write_all(answer.as_bytes()).await;
    if answer == UNFINISHED {
        std::future::pending::<()>().await;
    }
    let _ = stream.shutdown().await;
}

/// Returns `None` if the connection ends first.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break String::from_utf8(bytes.drain(..end + 4).collect()).unwrap();
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let mut lines = head.trim_end().split("\r\n").map(str::to_owned);
    let line = lines.next().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        })
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(Request { line, headers, body: bytes })
}
