//! A wire that can be cut: between two bytes of a request or of an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// More bytes than any test sends.
const ENDLESS: u64 = u64::MAX / 2;

/// A port that leads to a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    wires: Arc<Wires>,
}

/// How many bytes may still pass each way; whoever would pass more is cut there.
#[derive(Debug)]
struct Wires {
    there: AtomicU64,
    back: AtomicU64,
}

impl Proxy {
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let wires =
            Arc::new(Wires { there: AtomicU64::new(ENDLESS), back: AtomicU64::new(ENDLESS) });
        let shared = Arc::clone(&wires);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&server).await {
                    join(client, server, &shared);
                }
            }
        });
        Self { address, wires }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/0?response_timeout=10s", self.address)
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
}

/// Carries both ways until one is cut, which cuts the other. One cut mends the wire for those that
/// come after.
fn join(client: TcpStream, server: TcpStream, wires: &Arc<Wires>) {
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let cut = CancellationToken::new();
    let there = Arc::clone(wires);
    let back = Arc::clone(wires);
    let other = cut.clone();
    tokio::spawn(other.clone().run_until_cancelled_owned(async move {
        carry(from_client, to_server, &there.there).await;
        other.cancel();
    }));
    tokio::spawn(cut.clone().run_until_cancelled_owned(async move {
        carry(from_server, to_client, &back.back).await;
        cut.cancel();
    }));
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: &AtomicU64) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
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
