//! A TCP proxy that breaks connections, or holds them up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// More bytes than any test sends.
const UNLIMITED: u64 = u64::MAX / 2;

/// So many reads of a connection are held at most; then it is read no further.
const MAX_HELD: usize = 64;

/// A local port that forwards to a server.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    server: String,
    faults: Arc<Faults>,
}

/// The faults of all connections.
#[derive(Debug)]
struct Faults {
    requests: DirectionFaults,
    replies: DirectionFaults,
    /// Number of connections so far.
    accepted: AtomicU64,
    /// How the connections that are open at a change end.
    ends: watch::Sender<End>,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy)]
enum End {
    /// It is closed.
    Close,
    /// Both sides get an RST.
    Reset,
    /// It stays open, and nothing passes any more.
    Abandon,
}

/// The faults of one direction.
#[derive(Debug)]
struct DirectionFaults {
    /// Bytes that may still pass, all connections together; the connection that exceeds it is cut.
    budget: AtomicU64,
    /// Whether the cut is an RST.
    resets: AtomicBool,
    /// No byte passes while this is true.
    paused: watch::Sender<bool>,
    /// How long bytes are held before they pass.
    delay: watch::Sender<Duration>,
    /// Bytes that have passed.
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
        self.faults.requests.cut_after(bytes, false);
    }

    /// Lets this many further bytes pass from the server, then cuts the connection that receives
    /// more: the request has reached the server, and its reply is lost. Later connections pass.
    pub fn cut_reply_after(&self, bytes: u64) {
        self.faults.replies.cut_after(bytes, false);
    }

    /// As [`cut_reply_after`](Self::cut_reply_after), but both sides get an RST.
    pub fn reset_reply_after(&self, bytes: u64) {
        self.faults.replies.cut_after(bytes, true);
    }

    /// Number of connections that were forwarded so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.faults.accepted.load(Ordering::SeqCst)
    }

    /// Number of bytes of the server that were passed on to clients. What a cut connection received
    /// right before the cut is not counted.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.faults.replies.passed.load(Ordering::SeqCst)
    }

    /// Resets all connections that are open, on both sides, as a firewall does (RST). Later ones pass.
    pub fn reset(&self) {
        self.faults.ends.send_replace(End::Reset);
    }

    /// Leaves all connections open that are, and lets nothing pass on them for ever, as a router that
    /// has forgotten them: neither side learns of it. Later ones pass.
    pub fn abandon(&self) {
        self.faults.ends.send_replace(End::Abandon);
    }

    /// Holds what passes for this long, in each direction; zero for not at all, which also releases what
    /// is held.
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

    /// Pauses what clients send; what the server sends passes.
    pub fn pause_requests(&self) {
        self.faults.requests.paused.send_replace(true);
    }

    /// Pauses what the server sends; what clients send passes.
    pub fn pause_replies(&self) {
        self.faults.replies.paused.send_replace(true);
    }

    /// Ends every pause.
    pub fn resume(&self) {
        self.faults.requests.paused.send_replace(false);
        self.faults.replies.paused.send_replace(false);
    }
}

/// Forwards both directions until one of them is cut or ends, or the connection is to end. A cut lifts
/// the limit, so later connections pass; another connection that receives bytes at the same moment may
/// be cut, too.
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
                // It fails only on a connection that has ended.
                side.set_zero_linger().ok();
            }
        }
        End::Abandon => std::future::pending().await,
    }
}

/// Forwards one direction until it ends. Returns how the connection is to end.
async fn copy(from: ReadHalf<'_>, to: WriteHalf<'_>, faults: &DirectionFaults) -> End {
    let (sender, held) = mpsc::channel(MAX_HELD);
    tokio::select! {
        end = write(to, held, faults) => end,
        // When it ends, what is held still passes.
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
        // In one step: other connections take from the same budget.
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
