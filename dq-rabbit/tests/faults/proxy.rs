//! A wire that can be cut between two bytes, and held up so that nothing passes and nothing is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// More bytes than any test sends.
const ENDLESS: u64 = u64::MAX / 2;

/// A port that leads to a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    server: String,
    wires: Arc<Wires>,
}

#[derive(Debug)]
struct Wires {
    /// How many bytes may still pass each way; whoever would pass more is cut there.
    there: AtomicU64,
    back: AtomicU64,
    /// Nothing passes while this is so: to the server, and from it.
    held_there: watch::Sender<bool>,
    held_back: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let wires = Arc::new(Wires {
            there: AtomicU64::new(ENDLESS),
            back: AtomicU64::new(ENDLESS),
            held_there: watch::Sender::new(false),
            held_back: watch::Sender::new(false),
        });
        let (shared, to) = (Arc::clone(&wires), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&to).await {
                    join(client, server, &shared);
                }
            }
        });
        Self { address, server, wires }
    }

    /// The same URL by way of this port.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(&self.server, &self.address.to_string())
    }

    /// After so many more bytes to the server, the connection that would carry them is cut.
    pub(crate) fn cut_request_after(&self, bytes: u64) {
        self.wires.there.store(bytes, Ordering::SeqCst);
    }

    /// After so many more bytes from the server, the connection that would carry them is cut. What
    /// was asked has reached the server.
    pub(crate) fn cut_answer_after(&self, bytes: u64) {
        self.wires.back.store(bytes, Ordering::SeqCst);
    }

    /// From now on nothing passes, and no connection ends.
    pub(crate) fn hold(&self) {
        self.hold_requests();
        self.wires.held_back.send_replace(true);
    }

    /// From now on nothing reaches the server, and what it says passes.
    pub(crate) fn hold_requests(&self) {
        self.wires.held_there.send_replace(true);
    }

    /// Everything passes again.
    pub(crate) fn let_go(&self) {
        self.wires.held_there.send_replace(false);
        self.wires.held_back.send_replace(false);
    }
}

/// Carries both ways until one is cut, which cuts the other. One cut mends the wire for those that
/// come after.
fn join(client: TcpStream, server: TcpStream, wires: &Arc<Wires>) {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let cut = CancellationToken::new();
    let (there, back) = (Arc::clone(wires), Arc::clone(wires));
    let other = cut.clone();
    tokio::spawn(other.clone().run_until_cancelled_owned(async move {
        carry(from_client, to_server, &there.there, &there.held_there).await;
        other.cancel();
    }));
    tokio::spawn(cut.clone().run_until_cancelled_owned(async move {
        carry(from_server, to_client, &back.back, &back.held_back).await;
        cut.cancel();
    }));
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    left: &AtomicU64,
    held: &watch::Sender<bool>,
) {
    let mut buffer = [0; 16 * 1024];
    let mut held = held.subscribe();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if held.wait_for(|held| !held).await.is_err() {
            return;
        }
        let allowed = left.load(Ordering::SeqCst);
        let passes = read.min(usize::try_from(allowed).unwrap_or(usize::MAX));
        if to.write_all(&buffer[..passes]).await.is_err() {
            return;
        }
        if passes < read {
            left.store(ENDLESS, Ordering::SeqCst);
            return;
        }
        left.fetch_sub(passes as u64, Ordering::SeqCst);
    }
}
