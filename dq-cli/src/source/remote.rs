//! Sends requests to a server, and tells whether a change without a response took effect.

use std::error::Error as _;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::{Client, StatusCode, Url, redirect};
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use super::request::{Problem, Request};
use super::runtime::runtime;
use crate::failure::{Failure, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Response timeout, except for slow bulk requests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The server gives its store 0.8 s.
const READY_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest response that is read, so that an endless one does not fill the memory.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

pub(crate) struct Remote {
    runtime: Runtime,
    client: Client,
    base: String,
    token: Option<String>,
}

impl Remote {
    pub(crate) fn new(address: &str, token: Option<&str>) -> Result<Self> {
        // These errors do not print the address, which may hold a secret.
        let url = Url::parse(address).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let Some(url) = url else {
            return Err(Failure::usage(
                "the address of the server begins with neither http:// nor https://",
                "write it like http://127.0.0.1:7373",
            ));
        };
        if url.query().is_some() || url.fragment().is_some() {
            return Err(Failure::usage(
                "the address of the server has more than a path",
                "leave out what begins with ? or #",
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Failure::usage(
                "the address of the server has a login",
                "give the token in DQ_TOKEN, and the address without it",
            ));
        }
        // Has no effect if another provider is installed.
        rustls::crypto::ring::default_provider().install_default().ok();
        let mut client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            // Following a redirect turns a change into a GET, so the redirect is reported instead.
            .redirect(redirect::Policy::none());
        if is_loopback(&url) {
            client = client.no_proxy();
        }
        if url.scheme() == "http" {
            // The system's certificates are not read, because a container may lack them.
            client = client.tls_certs_only([]);
        }
        let client = client.build().map_err(|error| {
            let message = format!("TLS cannot be used: {}", cause(&error));
            Failure::new("config", message, "install the system's trusted certificates")
        })?;
        let base = address.trim_end_matches('/').to_owned();
        Ok(Self { runtime: runtime()?, client, base, token: token.map(str::to_owned) })
    }

    pub(super) fn send<T: DeserializeOwned>(&self, request: &Request<'_>) -> Result<T> {
        let call = self.http_request(request)?;
        let (status, text) =
            self.receive(call).map_err(|error| self.unreachable(&error, request.changes))?;
        let unreadable = |reason: String| {
            let message = format!("the response of {} cannot be read: {reason}", self.base);
            match request.changes {
                true => outcome_unknown(message),
                false => {
                    Failure::new("internal", message, "is it a dq server of the same version?")
                }
            }
        };
        if text.len() > MAX_RESPONSE_BYTES {
            return Err(unreadable("it is longer than 64 MiB".to_owned()));
        }
        if !request.succeeds_with(status) {
            return Err(self.problem(status, &text, request.changes));
        }
        serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
    }

    /// Asks whether the server and its store answer. Sends no token.
    pub(crate) fn ready(&self) -> Result<()> {
        let asking = self.client.get(format!("{}/readyz", self.base)).timeout(READY_TIMEOUT);
        let received = asking.build().and_then(|call| self.receive(call));
        let (status, text) = received.map_err(|error| self.unreachable(&error, false))?;
        match status {
            StatusCode::OK => Ok(()),
            status => Err(self.problem(status, &text, false)),
        }
    }

    /// Reads up to [`MAX_RESPONSE_BYTES`] and the rest of their chunk.
    fn receive(&self, call: reqwest::Request) -> reqwest::Result<(StatusCode, Vec<u8>)> {
        self.runtime.block_on(async {
            let mut response = self.client.execute(call).await?;
            let mut text = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                text.extend_from_slice(&chunk);
                if text.len() > MAX_RESPONSE_BYTES {
                    break;
                }
            }
            Ok((response.status(), text))
        })
    }

    fn http_request(&self, request: &Request<'_>) -> Result<reqwest::Request> {
        let mut head = request.head(&self.base);
        if let Some(token) = &self.token {
            head = head.header("authorization", format!("Bearer {token}"));
        }
        let body = request.body.as_ref().map(ToString::to_string).unwrap_or_default();
        let call = head.body(body).ok().and_then(|call| reqwest::Request::try_from(call).ok());
        let mut call = call.ok_or_else(|| {
            Failure::usage(
                format!("a request to {} cannot be written", self.base),
                "check the address, the token and the names for characters that HTTP forbids",
            )
        })?;
        *call.timeout_mut() = (!request.takes_long).then_some(TIMEOUT);
        Ok(call)
    }

    fn problem(&self, status: StatusCode, text: &[u8], changes: bool) -> Failure {
        if let Ok(problem) = serde_json::from_slice::<Problem>(text) {
            return match status {
                StatusCode::UNAUTHORIZED => self.unauthenticated(&problem.title),
                _ => problem.into(),
            };
        }
        let message = format!("{} responds with status {status}", self.base);
        let kind = match status.as_u16() {
            // A proxy answers so after it has passed the request on.
            502 | 504 if changes => return outcome_unknown(message),
            502..=504 => "unavailable",
            _ => "response",
        };
        Failure::new(kind, message, "is it the address of a dq server?")
    }

    fn unauthenticated(&self, title: &str) -> Failure {
        let (what, remedy) = match self.token {
            None => (
                "asks for a token",
                "give the one that `dq serve` has printed, or that its configuration has, in DQ_TOKEN \
                 or with --token",
            ),
            Some(_) => (
                "does not take this token",
                "look at DQ_TOKEN and --token: unless one is configured, `dq serve` makes a new token at \
                 each start",
            ),
        };
        Failure::new(title, format!("the server at {} {what}", self.base), remedy)
    }

    fn unreachable(&self, error: &reqwest::Error, changes: bool) -> Failure {
        let (base, why) = (&self.base, cause(error));
        // Without a connection, the server has seen no request.
        if changes && !error.is_connect() {
            return outcome_unknown(format!("the server at {base} has not answered: {why}"));
        }
        let remedy = match is_tls_error(error) {
            true => {
                "check that it speaks TLS at this port, and that this system trusts its certificate \
                 for this name"
            }
            false => "is it running? `dq serve` starts one",
        };
        let message = format!("the server at {base} cannot be reached: {why}");
        Failure::new("unavailable", message, remedy)
    }
}

fn outcome_unknown(message: String) -> Failure {
    Failure::new(
        "outcome unknown",
        message,
        "the change may have taken effect: look before you repeat it",
    )
}

/// Returns the text of the innermost error, which has no URL.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn is_tls_error(error: &reqwest::Error) -> bool {
    std::iter::successors(error.source(), |error| (*error).source()).any(|error| {
        let io = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error.is::<rustls::Error>() || io.is_some_and(|inner| inner.is::<rustls::Error>())
    })
}

/// Whether the server is on this machine, which needs no proxy.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::thread;

    use dq_core::QueueName;
    use dq_ops::{BulkAction, JobFilter, SimulationRequest};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::source::Source;

    #[test]
    fn only_addresses_of_http_are_taken() {
        for address in
            ["", "h:7373", "ftp://x", "http://", "https:///", "http://h?q", "http://h/x#y"]
        {
            assert!(Remote::new(address, None).is_err(), "{address:?}");
        }
        assert_eq!(
            Remote::new("http://[::1]:80/ops/dq/", None).unwrap().base,
            "http://[::1]:80/ops/dq"
        );
        for (host, local) in
            [("127.0.0.1:80/x", true), ("[::1]:80", true), ("localhost", true), ("10.0.0.1", false)]
        {
            let url = Url::parse(&format!("http://{host}")).unwrap();
            assert_eq!(is_loopback(&url), local, "{host}");
        }
    }

    fn client(address: &str) -> Source {
        Source::Server(Remote::new(address, None).unwrap())
    }

    fn refusal<T>(result: Result<T>) -> (String, String) {
        match result {
            Err(Failure::Error { kind, message, .. }) => (kind, message),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it is taken"),
        }
    }

    #[test]
    fn an_address_with_a_login_is_refused_and_not_printed() {
        for address in ["http://dq:hunter2@127.0.0.1:1", "https://hunter2@h/x", "http://a@hunter2?"]
        {
            let (kind, message) = refusal(Remote::new(address, None));
            assert_eq!(kind, "invalid input");
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(Remote::new("http://127.0.0.1:1/a@b", None).is_ok());
    }

    #[test]
    fn a_change_without_an_answer_may_have_taken_effect() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = client(&format!("http://{}", listener.local_addr().unwrap()));
        let server = thread::spawn(move || {
            for answer in ["", "", "", "", "HTTP/1.1 504 T\r\ncontent-length: 0\r\n\r\n"] {
                let mut stream = listener.accept().unwrap().0;
                let mut head = [0; 16];
                stream.read_exact(&mut head).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let queue = QueueName::new("MAIL").unwrap();
        // The first three change nothing; two of them use POST.
        assert_eq!(refusal(api.queues()).0, "unavailable");
        let all = JobFilter::default();
        assert_eq!(refusal(api.count(&queue, BulkAction::Cancel, &all)).0, "unavailable");
        assert_eq!(refusal(api.simulate(&SimulationRequest::default())).0, "unavailable");
        assert_eq!(refusal(api.pause(&queue, true)).0, "outcome unknown");
        assert_eq!(refusal(api.pause(&queue, true)).0, "outcome unknown");
        server.join().unwrap();
        assert_eq!(refusal(api.pause(&queue, true)).0, "unavailable");
    }

    #[test]
    fn a_response_without_end_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = client(&format!("http://{}", listener.local_addr().unwrap()));
        let server = thread::spawn(move || {
            let spaces = vec![b' '; 1 << 16];
            for _ in 0..2 {
                let mut stream = listener.accept().unwrap().0;
                let mut head = [0; 16];
                stream.read_exact(&mut head).unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                // 128 MiB, so that the test ends without the limit, too.
                let _ = (0..2_048).try_for_each(|_| stream.write_all(&spaces));
            }
        });
        let (kind, message) = refusal(api.queues());
        assert_eq!(kind, "internal");
        assert!(message.ends_with("it is longer than 64 MiB"), "{message}");
        let queue = QueueName::new("MAIL").unwrap();
        assert_eq!(refusal(api.pause(&queue, true)).0, "outcome unknown");
        server.join().unwrap();
    }

    #[test]
    fn a_change_without_a_connection_has_not_taken_effect() {
        let dir = tempfile::tempdir().unwrap();
        dq_servers::create_certificates(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let certificate = CertificateDer::from_pem_file(dir.path().join("server.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(dir.path().join("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut connection = ServerConnection::new(config).unwrap();
            while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
            // Not TLS; then the connection closes during the handshake.
            for answer in ["HTTP/1.1 400 B\r\ncontent-length: 0\r\n\r\n", ""] {
                let mut stream = listener.accept().unwrap().0;
                let mut head = [0; 16];
                stream.read_exact(&mut head).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let queue = QueueName::new("MAIL").unwrap();
        let api = client(&format!("https://localhost:{port}"));
        let (kind, message) = refusal(api.pause(&queue, true));
        assert_eq!(kind, "unavailable", "{message}");
        assert!(message.contains("invalid peer certificate"), "{message}");
        for _ in 0..2 {
            let (kind, message) = refusal(api.pause(&queue, true));
            assert_eq!(kind, "unavailable", "{message}");
        }
        server.join().unwrap();
        let nowhere = client("http://does-not-exist.invalid");
        let (kind, message) = refusal(nowhere.pause(&queue, true));
        assert_eq!(kind, "unavailable", "{message}");
    }
}
