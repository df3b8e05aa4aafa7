//! The proxy breaks connections as networks do.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::wait_until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Also returns the count of bytes that the server has received.
async fn echo() -> (TcpProxy, Arc<AtomicUsize>) {
    let received = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&received);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let mut buffer = [0; 16];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    counter.fetch_add(read, Ordering::SeqCst);
                    stream.write_all(&buffer[..read]).await.ok();
                }
            });
        }
    });
    (TcpProxy::to(address).await, received)
}

async fn connect(proxy: &TcpProxy) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    assert_eq!(ask(&mut stream).await.unwrap(), 4);
    stream
}

/// Returns how many bytes come back at once.
async fn ask(stream: &mut TcpStream) -> std::io::Result<usize> {
    stream.write_all(b"ping").await?;
    stream.read(&mut [0; 16]).await
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    match tokio::time::timeout(Duration::from_millis(200), ask(stream)).await {
        Ok(answer) => {
            assert_eq!(answer.unwrap(), 4);
            false
        }
        Err(_) => true,
    }
}

#[tokio::test]
async fn a_reset_is_an_error_and_a_cut_is_an_end() {
    let (proxy, _) = echo().await;
    let mut cut = connect(&proxy).await;
    proxy.cut_reply_after(0);
    assert_eq!(ask(&mut cut).await.unwrap(), 0);
    let mut reset = connect(&proxy).await;
    proxy.reset();
    let error = reset.read(&mut [0; 16]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let mut reset_in_reply = connect(&proxy).await;
    proxy.reset_reply_after(0);
    let error = ask(&mut reset_in_reply).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    connect(&proxy).await;
}

#[tokio::test]
async fn abandoned_connections_stay_silent_and_later_ones_pass() {
    let (proxy, _) = echo().await;
    let mut abandoned = connect(&proxy).await;
    proxy.abandon();
    // The proxy reacts soon, but not at once.
    let mut asked = 0;
    while !is_silent(&mut abandoned).await {
        asked += 1;
        assert!(asked < 50);
    }
    proxy.resume();
    connect(&proxy).await;
    assert!(is_silent(&mut abandoned).await);
}

#[tokio::test]
async fn either_direction_is_paused_and_goes_on() {
    let (proxy, received) = echo().await;
    let mut stream = connect(&proxy).await;
    let pauses = [
        (TcpProxy::pause_requests as fn(&TcpProxy), 0),
        (TcpProxy::pause_replies, 4),
        (TcpProxy::pause, 0),
    ];
    for (pause, arrives) in pauses {
        let before = received.load(Ordering::SeqCst);
        pause(&proxy);
        assert!(is_silent(&mut stream).await);
        let arrived = async || received.load(Ordering::SeqCst) - before == arrives;
        wait_until("the requests arrive", arrived).await;
        proxy.resume();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 4);
    }
}

#[tokio::test]
async fn a_delay_holds_each_direction_and_limits_nothing_else() {
    let (proxy, _) = echo().await;
    let mut stream = connect(&proxy).await;
    proxy.delay(Duration::from_millis(500));
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let begin = Instant::now();
        for _ in 0..4 {
            stream.write_all(b"ping").await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stream.read_exact(&mut [0; 16]).await.unwrap();
        quickest = quickest.min(begin.elapsed());
    }
    assert!(quickest >= Duration::from_secs(1), "{quickest:?}");
    // Delayed one by one, they take four times as long.
    assert!(quickest < Duration::from_millis(3_500), "{quickest:?}");

    proxy.delay(Duration::from_secs(3_600));
    assert!(is_silent(&mut stream).await);
    proxy.delay(Duration::ZERO);
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 4);
}
