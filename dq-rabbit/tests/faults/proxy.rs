//! A TCP proxy that can cut connections at any byte, and pause them without closing.

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

/// A proxy of one server.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    server: String,
    controls: Arc<Controls>,
}

#[derive(Debug)]
struct Controls {
    /// Bytes that may still pass in each direction; the connection that exceeds them is cut.
    request_bytes: AtomicU64,
    reply_bytes: AtomicU64,
    /// Whether nothing passes in this direction.
    requests_paused: watch::Sender<bool>,
    replies_paused: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let controls = Arc::new(Controls {
            request_bytes: AtomicU64::new(UNLIMITED),
            reply_bytes: AtomicU64::new(UNLIMITED),
            requests_paused: watch::Sender::new(false),
            replies_paused: watch::Sender::new(false),
        });
        let (shared, to) = (Arc::clone(&controls), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&to).await {
                    forward(client, server, &shared);
                }
            }
        });
        Self { address, server, controls }
    }

    /// The URL of the server through this proxy.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(&self.server, &self.address.to_string())
    }

    /// Cuts the connection that sends the server more than `bytes` bytes from now on.
    pub(crate) fn cut_request_after(&self, bytes: u64) {
        self.controls.request_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Cuts the connection that receives more than `bytes` bytes from the server from now on. Its
    /// requests have reached the server.
    pub(crate) fn cut_reply_after(&self, bytes: u64) {
        self.controls.reply_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Pauses both directions without closing connections.
    pub(crate) fn pause(&self) {
        self.pause_requests();
        self.controls.replies_paused.send_replace(true);
    }

    /// Pauses data to the server only.
    pub(crate) fn pause_requests(&self) {
        self.controls.requests_paused.send_replace(true);
    }

    /// Ends the pause.
    pub(crate) fn resume(&self) {
        self.controls.requests_paused.send_replace(false);
        self.controls.replies_paused.send_replace(false);
    }
}

/// Copies both directions until one is cut, which cuts the other. A cut resets the limit for later
/// connections.
fn forward(client: TcpStream, server: TcpStream, controls: &Arc<Controls>) {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let cut = CancellationToken::new();
    let (requests, replies) = (Arc::clone(controls), Arc::clone(controls));
    let other = cut.clone();
    tokio::spawn(other.clone().run_until_cancelled_owned(async move {
        copy(from_client, to_server, &requests.request_bytes, &requests.requests_paused).await;
        other.cancel();
    }));
    tokio::spawn(cut.clone().run_until_cancelled_owned(async move {
        copy(from_server, to_client, &replies.reply_bytes, &replies.replies_paused).await;
        cut.cancel();
    }));
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    left: &AtomicU64,
    paused: &watch::Sender<bool>,
) {
    let mut buffer = [0; 16 * 1024];
    let mut paused = paused.subscribe();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if paused.wait_for(|paused| !paused).await.is_err() {
            return;
        }
        let allowed = left.load(Ordering::SeqCst);
        let passes = read.min(usize::try_from(allowed).unwrap_or(usize::MAX));
        if to.write_all(&buffer[..passes]).await.is_err() {
            return;
        }
        if passes < read {
            left.store(UNLIMITED, Ordering::SeqCst);
            return;
        }
        left.fetch_sub(passes as u64, Ordering::SeqCst);
    }
}
