//! A TCP proxy that breaks or delays connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Bytes. No test sends as many.
const UNLIMITED: u64 = u64::MAX / 2;

/// Reads that a direction holds at most while it is paused or delayed. Further bytes wait in the
/// socket.
const MAX_HELD: usize = 64;

/// A local port that forwards to a server.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    server: String,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Faults {
    requests: DirectionFaults,
    replies: DirectionFaults,
    accepted: AtomicU64,
    /// A new value ends the open connections.
    ends: watch::Sender<End>,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Close,
    Reset,
    /// Stays open, but nothing passes.
    Abandon,
}

#[derive(Debug)]
struct DirectionFaults {
    /// Bytes that may still pass on all connections together. One that exceeds it is cut.
    budget: AtomicU64,
    resets: AtomicBool,
    paused: watch::Sender<bool>,
    delay: watch::Sender<Duration>,
    passed: AtomicU64,
}

impl Default for DirectionFaults {
    fn default() -> Self {
        Self {
            budget: AtomicU64::new(UNLIMITED),
            resets: AtomicBool::new(false),
            paused: watch::Sender::new(false),
            delay: watch::Sender::new(Duration::ZERO),
            passed: AtomicU64::new(0),
        }
    }
}

impl DirectionFaults {
    fn cut_after(&self, bytes: u64, resets: bool) {
        self.resets.store(resets, Ordering::SeqCst);
        self.budget.store(bytes, Ordering::SeqCst);
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
        let (requests, replies) = (DirectionFaults::default(), DirectionFaults::default());
        // No connection sees the first value.
        let (accepted, ends) = (AtomicU64::new(0), watch::Sender::new(End::Close));
        let faults = Arc::new(Faults { requests, replies, accepted, ends });
        let (shared, target) = (Arc::clone(&faults), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&target).await {
                    shared.accepted.fetch_add(1, Ordering::SeqCst);
                    let ends = shared.ends.subscribe();
                    tokio::spawn(forward(client, server, Arc::clone(&shared), ends));
                }
            }
        });
        Self { address, server, faults }
    }

    /// Returns the proxy's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Replaces the server's address in this URL with the proxy's.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        url.replace(&self.server, &self.address.to_string())
    }

    /// Lets this many more bytes pass to the server, then cuts the connection that sends more.
    ///
    /// Later connections pass.
    pub fn cut_request_after(&self, bytes: u64) {
        self.faults.requests.cut_after(bytes, false);
    }

    /// Lets this many more bytes pass from the server, then cuts the connection that receives more.
    ///
    /// The server has then received the request, but its reply is lost. Later connections pass.
    pub fn cut_reply_after(&self, bytes: u64) {
        self.faults.replies.cut_after(bytes, false);
    }

    /// Cuts like [`cut_reply_after`](Self::cut_reply_after), but both sides receive an RST.
    pub fn reset_reply_after(&self, bytes: u64) {
        self.faults.replies.cut_after(bytes, true);
    }

    /// Returns how many connections were forwarded.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.faults.accepted.load(Ordering::SeqCst)
    }

    /// Returns how many server bytes were passed to clients.
    ///
    /// Bytes that a connection received right before its cut do not count.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.faults.replies.passed.load(Ordering::SeqCst)
    }

    /// Resets all open connections on both sides (RST), as a firewall does. Later ones pass.
    pub fn reset(&self) {
        self.faults.ends.send_replace(End::Reset);
    }

    /// Silently stops all traffic on open connections, like a router that has forgotten them.
    ///
    /// Later connections pass.
    pub fn abandon(&self) {
        self.faults.ends.send_replace(End::Abandon);
    }

    /// Delays bytes in each direction. Zero ends the delay and releases held bytes.
    pub fn delay(&self, delay: Duration) {
        for direction in [&self.faults.requests, &self.faults.replies] {
            direction.delay.send_replace(delay);
        }
    }

    /// Pauses both directions; connections stay open.
    pub fn pause(&self) {
        self.pause_requests();
        self.pause_replies();
    }

    /// Pauses only the bytes that clients send.
    pub fn pause_requests(&self) {
        self.faults.requests.paused.send_replace(true);
    }

    /// Pauses only the bytes that the server sends.
    pub fn pause_replies(&self) {
        self.faults.replies.paused.send_replace(true);
    }

    /// Ends every pause.
    pub fn resume(&self) {
        self.faults.requests.paused.send_replace(false);
        self.faults.replies.paused.send_replace(false);
    }
}

/// Forwards both directions until one ends or is cut, or a fault ends the connection. A cut lifts
/// the limit; another connection that receives bytes at the same moment may also be cut.
async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    faults: Arc<Faults>,
    mut ends: watch::Receiver<End>,
) {
    let end = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            end = copy(from_client, to_server, &faults.requests) => end,
            end = copy(from_server, to_client, &faults.replies) => end,
            changed = ends.changed() => {
                changed.expect("`faults` has the sender");
                *ends.borrow_and_update()
            }
        }
    };
    match end {
        End::Close => {}
        End::Reset => {
            for side in [&client, &server] {
                // Fails only on a connection that has ended.
                side.set_zero_linger().ok();
            }
        }
        End::Abandon => std::future::pending().await,
    }
}

async fn copy(from: ReadHalf<'_>, to: WriteHalf<'_>, faults: &DirectionFaults) -> End {
    let (sender, held) = mpsc::channel(MAX_HELD);
    tokio::select! {
        end = write(to, held, faults) => end,
        // Held bytes still pass.
        () = async { read(from, sender, faults).await; std::future::pending().await } => End::Close,
    }
}

/// Bytes, and when they may pass.
type Held = (Instant, Vec<u8>);

async fn read(mut from: ReadHalf<'_>, held: mpsc::Sender<Held>, faults: &DirectionFaults) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let passes_at = Instant::now() + *faults.delay.borrow();
        if held.send((passes_at, buffer[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut held: mpsc::Receiver<Held>,
    faults: &DirectionFaults,
) -> End {
    let (mut paused, mut delay) = (faults.paused.subscribe(), faults.delay.subscribe());
    while let Some((passes_at, bytes)) = held.recv().await {
        if passes_at > Instant::now() {
            tokio::select! {
                () = sleep_until(passes_at) => {}
                _ = delay.wait_for(Duration::is_zero) => {}
            }
        }
        if paused.wait_for(|paused| !paused).await.is_err() {
            return End::Close;
        }
        // Atomic, because all connections share the budget.
        let take = |budget: u64| Some(budget.saturating_sub(bytes.len() as u64));
        let budget = faults.budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        let budget = budget.unwrap_or_else(|unchanged| unchanged);
        let passes = bytes.len().min(usize::try_from(budget).unwrap_or(usize::MAX));
        if to.write_all(&bytes[..passes]).await.is_err() {
            return End::Close;
        }
        if passes < bytes.len() {
            faults.budget.store(UNLIMITED, Ordering::SeqCst);
            return if faults.resets.load(Ordering::SeqCst) { End::Reset } else { End::Close };
        }
        faults.passed.fetch_add(passes as u64, Ordering::SeqCst);
    }
    End::Close
}
