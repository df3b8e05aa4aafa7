//! Accepts connections within limits.
//!
//! Without limits, an unauthenticated client can hold any number of connections forever, by sending
//! half a header or by reading no response.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long a request header may take to arrive, from the end of the previous request.
    pub(crate) header: Duration,
    /// How long a client may read nothing of a response.
    pub(crate) write: Duration,
    /// Connections at once; more wait for a free place.
    pub(crate) connections: usize,
    /// How long requests may take to finish after shutdown begins.
    pub(crate) grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs(10);
        Self { header: seconds, write: seconds, connections: 10_000, grace: seconds }
    }
}

/// Serves until `shutdown` completes, then sets `stop` and lets requests finish.
pub(crate) async fn serve(
    mut listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: watch::Sender<bool>,
    shutdown: impl Future<Output = ()>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header);
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            (stream, _) = Listener::accept(&mut listener), if connections.len() < limits.connections => {
                let service = TowerToHyperService::new(router.clone());
                let mut stream = TimeoutStream::new(stream);
                stream.set_write_timeout(Some(limits.write));
                let stream = TokioIo::new(Box::pin(stream));
                let connection = builder.serve_connection(stream, service);
                let mut stop = stop.subscribe();
                connections.spawn(async move {
                    let mut connection = pin!(connection);
                    tokio::select! {
                        ended = connection.as_mut() => return ended,
                        // An error means that the server is gone.
                        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
                    }
                    connection.await
                });
            }
        }
    }
    drop(listener);
    stop.send_replace(true);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Dropping the set closes the remaining connections.
    let _ = tokio::time::timeout(limits.grace, finished).await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(600);
    const PATIENT: Limits = Limits { header: LONG, write: LONG, connections: 1, grace: LONG };

    const HALF: &str = "GET / HTTP/1.1\r\nhost:";
    const LARGE: &str = "GET /large HTTP/1.1\r\nhost: h\r\n\r\n";

    async fn start(limits: Limits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/", get(|| async { "served" }))
            // Exceeds the kernel's buffers.
            .route("/large", get(|| async { vec![0; 64 * 1024 * 1024] }));
        let (end, ended) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = ended.await;
        };
        let (stop, _) = watch::channel(false);
        (address, end, tokio::spawn(serve(listener, router, limits, stop, shutdown)))
    }

    async fn send(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn assert_serves(address: SocketAddr) {
        let request = "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
        let mut response = String::new();
        send(address, request).await.read_to_string(&mut response).await.unwrap();
        assert!(response.ends_with("served"), "{response}");
    }

    #[tokio::test]
    async fn a_slow_client_does_not_hold_the_only_connection() {
        for (limits, slow) in [
            (Limits { header: SHORT, ..PATIENT }, HALF),
            // The client reads nothing of the response.
            (Limits { write: SHORT, ..PATIENT }, LARGE),
        ] {
            let (address, _end, _server) = start(limits).await;
            let _slow = send(address, slow).await;
            assert_serves(address).await;
        }
    }

    #[tokio::test]
    async fn half_a_header_does_not_hold_the_shutdown() {
        let (address, end, server) =
            start(Limits { connections: 10, grace: SHORT, ..PATIENT }).await;
        let _half = send(address, HALF).await;
        // Connections are accepted in order, so the server has the previous one.
        assert_serves(address).await;
        end.send(()).unwrap();
        server.await.unwrap();
    }
}
