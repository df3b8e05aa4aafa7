//! A TCP proxy that cuts a connection after a given number of bytes, or pauses all connections.

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
    faults: Arc<Faults>,
}

/// The faults of both directions, shared by all connections.
#[derive(Debug, Default)]
struct Faults {
    requests: DirectionFaults,
    replies: DirectionFaults,
}

/// The faults of one direction.
#[derive(Debug)]
struct DirectionFaults {
    /// Bytes that may still pass, all connections together; the connection that exceeds it is cut.
    budget: AtomicU64,
    /// No byte passes while this is true.
    paused: watch::Sender<bool>,
    /// Bytes that have passed.
    passed: AtomicU64,
}

impl Default for DirectionFaults {
    fn default() -> Self {
        Self {
            budget: AtomicU64::new(UNLIMITED),
            paused: watch::Sender::new(false),
            passed: AtomicU64::new(0),
        }
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
        let faults = Arc::new(Faults::default());
        let (shared, target) = (Arc::clone(&faults), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&target).await {
                    forward(client, server, &shared);
                }
            }
        });
        Self { address, server, faults }
    }

    /// The proxy's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// This URL of the server, with the proxy's address in place of the server's.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        url.replace(&self.server, &self.address.to_string())
    }

    /// Lets this many further bytes pass to the server, then cuts the connection that sends more.
    /// Later connections pass.
    pub fn cut_request_after(&self, bytes: u64) {
        self.faults.requests.budget.store(bytes, Ordering::SeqCst);
    }

    /// Lets this many further bytes pass from the server, then cuts the connection that receives
    /// more: the request has reached the server, and its reply is lost. Later connections pass.
    pub fn cut_reply_after(&self, bytes: u64) {
        self.faults.replies.budget.store(bytes, Ordering::SeqCst);
    }

    /// Number of bytes of the server that were passed on to clients. What a cut connection received
    /// right before the cut is not counted.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.faults.replies.passed.load(Ordering::SeqCst)
    }

    /// Pauses both directions; connections stay open.
    pub fn pause(&self) {
        self.pause_requests();
        self.faults.replies.paused.send_replace(true);
    }

    /// Pauses what clients send; what the server sends passes.
    pub fn pause_requests(&self) {
        self.faults.requests.paused.send_replace(true);
    }

    /// Ends every pause.
    pub fn resume(&self) {
        self.faults.requests.paused.send_replace(false);
        self.faults.replies.paused.send_replace(false);
    }
}

/// Forwards both directions until one is cut, which cuts the other. A cut lifts the limit, so later
/// connections pass; another connection that receives bytes at the same moment may be cut, too.
fn forward(client: TcpStream, server: TcpStream, faults: &Arc<Faults>) {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let cut = CancellationToken::new();
    let (requests, replies) = (Arc::clone(faults), Arc::clone(faults));
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

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: &DirectionFaults) {
    let mut buffer = [0; 16 * 1024];
    let mut paused = faults.paused.subscribe();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if paused.wait_for(|paused| !paused).await.is_err() {
            return;
        }
        // In one step: other connections take from the same budget.
        let take = |budget: u64| Some(budget.saturating_sub(read as u64));
        let budget = faults.budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        let budget = budget.unwrap_or_else(|unchanged| unchanged);
        let passes = read.min(usize::try_from(budget).unwrap_or(usize::MAX));
        if to.write_all(&buffer[..passes]).await.is_err() {
            return;
        }
        if passes < read {
            faults.budget.store(UNLIMITED, Ordering::SeqCst);
            return;
        }
        faults.passed.fetch_add(passes as u64, Ordering::SeqCst);
    }
}
