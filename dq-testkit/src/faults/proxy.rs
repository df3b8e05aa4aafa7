//! A TCP proxy that cuts connections between two bytes, or pauses them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// More bytes than any test sends.
const UNLIMITED: u64 = u64::MAX / 2;

/// A local port that forwards to a server.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    server: String,
    links: Arc<Links>,
}

/// The faults of both directions, shared by all connections.
#[derive(Debug, Default)]
struct Links {
    requests: Link,
    replies: Link,
}

/// The faults of one direction.
#[derive(Debug)]
struct Link {
    /// Bytes that may still pass; the connection that carries more is cut there.
    budget: AtomicU64,
    /// Nothing passes while this is true.
    paused: watch::Sender<bool>,
}

impl Default for Link {
    fn default() -> Self {
        Self { budget: AtomicU64::new(UNLIMITED), paused: watch::Sender::new(false) }
    }
}

impl TcpProxy {
    /// Opens a port that forwards to the server at this `host:port`.
    ///
    /// # Panics
    /// If no port can be opened.
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener's address");
        let links = Arc::new(Links::default());
        let (shared, target) = (Arc::clone(&links), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&target).await {
                    forward(client, server, &shared);
                }
            }
        });
        Self { address, server, links }
    }

    /// The proxy's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The server's URL, with the proxy's address in place of the server's.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        url.replace(&self.server, &self.address.to_string())
    }

    /// Cuts the connection that sends more than this many further bytes to the server.
    pub fn cut_request_after(&self, bytes: u64) {
        self.links.requests.budget.store(bytes, Ordering::SeqCst);
    }

    /// Cuts the connection that receives more than this many further bytes from the server. The
    /// request has reached the server.
    pub fn cut_reply_after(&self, bytes: u64) {
        self.links.replies.budget.store(bytes, Ordering::SeqCst);
    }

    /// Pauses both directions; connections stay open.
    pub fn pause(&self) {
        self.pause_requests();
        self.links.replies.paused.send_replace(true);
    }

    /// Pauses what clients send; what the server sends passes.
    pub fn pause_requests(&self) {
        self.links.requests.paused.send_replace(true);
    }

    /// Ends every pause.
    pub fn resume(&self) {
        self.links.requests.paused.send_replace(false);
        self.links.replies.paused.send_replace(false);
    }
}

/// Forwards both directions until one is cut, which cuts the other. A cut happens once; later
/// connections pass.
fn forward(client: TcpStream, server: TcpStream, links: &Arc<Links>) {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let cut = CancellationToken::new();
    let (requests, replies) = (Arc::clone(links), Arc::clone(links));
    let other = cut.clone();
    tokio::spawn(other.clone().run_until_cancelled_owned(async move {
        copy(from_client, to_server, &requests.requests).await;
        other.cancel();
    }));
    tokio::spawn(cut.clone().run_until_cancelled_owned(async move {
        copy(from_server, to_client, &replies.replies).await;
        cut.cancel();
    }));
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, link: &Link) {
    let mut buffer = [0; 16 * 1024];
    let mut paused = link.paused.subscribe();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if paused.wait_for(|paused| !paused).await.is_err() {
            return;
        }
        let budget = link.budget.load(Ordering::SeqCst);
        let passes = read.min(usize::try_from(budget).unwrap_or(usize::MAX));
        if to.write_all(&buffer[..passes]).await.is_err() {
            return;
        }
        if passes < read {
            link.budget.store(UNLIMITED, Ordering::SeqCst);
            return;
        }
        link.budget.fetch_sub(passes as u64, Ordering::SeqCst);
    }
}
