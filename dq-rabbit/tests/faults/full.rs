//! A log that takes no more jobs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{BrowseParams, ErrorKind, JobState, Operation};

use crate::fixture::{config, finding, in_an_hour, job, open, queue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_beyond_the_log_is_refused_and_loses_no_payload() {
    const PAYLOAD: usize = 512 * 1024;
    let mut config = config("full");
    config.log_size_mib = 16;
    config.response_timeout = Duration::from_secs(60);
    let processes = [open(&config).await, open(&config).await];
    let large = |byte: u8| in_an_hour(job("q")).payload(vec![byte; PAYLOAD]);
    processes[1].schedule(vec![large(0)]).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 1..60_u8 {
        let process = Arc::clone(&processes[usize::from(number) % 2]);
        let job = large(number);
        calls.spawn(async move { process.schedule(vec![job]).await.map(|_| number) });
    }
    let mut accepted = vec![Bytes::from(vec![0; PAYLOAD])];
    while let Some(called) = calls.join_next().await {
        match called.unwrap() {
            Ok(number) => accepted.push(Bytes::from(vec![number; PAYLOAD])),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
        }
    }
    assert!((2..=6).contains(&accepted.len()), "{} jobs of 512 KiB", accepted.len());
    let fresh = open(&config).await;
    let name = queue("q");
    let params = BrowseParams::new(&name, JobState::Scheduled).limit(10_000).payloads(true);
    let page = fresh.browse(params).await.unwrap();
    let mut found: Vec<Bytes> = page.jobs.into_iter().map(|view| view.job.payload).collect();
    found.sort();
    accepted.sort();
    assert!(found == accepted, "{} payloads differ", found.len());
    let full = loop {
        let small = in_an_hour(job("q")).payload(vec![8; 64 * 1024]);
        if let Err(error) = fresh.schedule(vec![small]).await {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    assert!(finding(&*fresh, "rabbitmq.log-full").await.is_some());
    fresh.operate(Operation::Purge { queue: &name }).await.unwrap();
    assert_eq!(finding(&*fresh, "rabbitmq.log-full").await, None);
}
