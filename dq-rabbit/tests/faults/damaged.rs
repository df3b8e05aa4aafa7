//! A message of the log is damaged on its way to one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::Cancelled;
use dq_core::config::Secret;
use dq_servers::shared_rabbitmq;
use dq_testkit::fixture::{by_id, in_an_hour, job, stats, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{config, open};

/// The damaged part of a payload.
const MARK: &[u8] = b"damage this byte";

/// Returns the proxy's port, and whether it has changed the last byte of a [`MARK`].
async fn damaging_proxy(server: String) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(pass(client, server, Arc::clone(&done)));
        }
    });
    (port, is_done)
}

async fn pass(client: TcpStream, server: TcpStream, is_done: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let replies = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            let read = &mut buffer[..length];
            let found = read.windows(MARK.len()).position(|window| window == MARK);
            if let Some(start) = found
                && !is_done.swap(true, Ordering::SeqCst)
            {
                read[start + MARK.len() - 1] ^= 1;
            }
            to_client.write_all(read).await?;
        }
    };
    tokio::select! { _ = requests => {}, _ = replies => {} }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_damaged_on_its_way_to_one_process_is_read_again() {
    let config = config("damaged");
    let server = shared_rabbitmq().address();
    let (port, is_damaged) = damaging_proxy(server.clone()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = Secret::new(config.url.expose().replace(&server, &format!("127.0.0.1:{port}")));
    let (writer, reader) = (open(&config).await, open(&by_proxy).await);
    let mut marked = in_an_hour(job("q"));
    marked.payload = MARK.into();
    assert!(writer.schedule(vec![marked.clone()]).await.unwrap()[0].is_stored());
    wait_until("the message is damaged", async || is_damaged.load(Ordering::SeqCst)).await;
    let view = reader.get(&by_id(&marked)).await.unwrap().unwrap();
    assert_eq!(view.job.payload, marked.payload);
    assert_eq!(stats(&*reader, "q").await, stats(&*writer, "q").await);
    assert_eq!(reader.cancel(&[by_id(&marked)]).await.unwrap(), [Cancelled::Cancelled]);
    let codes: Vec<_> = reader.check().await.into_iter().map(|finding| finding.code).collect();
    assert!(!codes.contains(&"rabbitmq.log-skipped"), "{codes:?}");
}
