use std::time::Duration;

use dq_core::{Due, DurationExt};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::support::{Fixture, auth, events};

#[tokio::test]
async fn changes_arrive_as_events() {
    let fixture = Fixture::start("/ops/dq").await;
    let (_, first) = events::wait_for(fixture.address, "/ops/dq", "event: overview").await;
    let head = first.to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/event-stream"), "{head}");

    fixture.schedule("LATER", "a", "1", Due::After(1.hours())).await;
    events::wait_for(fixture.address, "/ops/dq", "\"LATER\"").await;
}

/// An open page must not hold a server that waits for all responses.
#[tokio::test]
async fn a_graceful_shutdown_does_not_wait_for_ever_for_a_page() {
    let fixture = Fixture::start("/ops/dq").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let router = dq_web::router(fixture.ops.clone(), auth());
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let server = tokio::spawn(server.into_future());
    let mut page = events::open(address, "").await;
    assert!(page.read(&mut [0; 4096]).await.unwrap() > 0, "the response has begun");

    stop.send(()).unwrap();

    let ended = tokio::time::timeout(Duration::from_secs(120), server).await;
    ended.expect("the response ends by itself").unwrap().unwrap();
}
