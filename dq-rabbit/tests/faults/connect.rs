//! A broker that is unreachable at first, and connections that break while the backend opens.

use std::sync::Arc;
use std::time::Duration;

use dq_core::ErrorKind;
use dq_servers::RabbitMq;

use crate::fixture::{
    assert_error, blocking, by_proxy, claim, config, config_for, connect, job, open,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_fails_without_a_broker_and_waits_for_one_within_the_timeout() {
    let server = Arc::new(RabbitMq::start());
    let mut config = config_for(&server);
    server.stop();
    config.response_timeout = Duration::from_millis(300);
    let error = assert_error(connect(&config).await, ErrorKind::Unavailable, &[&server.address()]);
    assert!(error.is_retryable());
    assert_eq!(error.failed_operation(), "connect");

    config.response_timeout = Duration::from_secs(150);
    let starting = tokio::spawn(blocking({
        let server = Arc::clone(&server);
        move || server.restart()
    }));
    let backend = open(&config).await;
    starting.await.unwrap();
    backend.schedule(vec![job("q")]).await.unwrap();
    assert_eq!(claim(&*backend, "q", 1).await.unwrap().jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_goes_on_after_its_connection_breaks() {
    const CUTS: u64 = 6;
    let (proxy, whole) = by_proxy(&config("whole")).await;
    open(&whole).await.close().await.unwrap();
    let bytes = proxy.reply_bytes();
    for cut in 1..CUTS {
        let (proxy, config) = by_proxy(&config(&format!("broken-{cut}"))).await;
        proxy.reset_reply_after(bytes * cut / CUTS);
        let backend = connect(&config).await.unwrap();
        // Two connections, and the one that was reset.
        assert!(proxy.connections() >= 3, "no connection was reset at {cut} of {CUTS}");
        backend.schedule(vec![job("q")]).await.unwrap();
        assert_eq!(claim(&*backend, "q", 1).await.unwrap().jobs.len(), 1);
    }
}
