//! Connections that break after any number of bytes, in either direction.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Backend, Cancelled, ErrorKind, Scheduled};
use dq_servers::shared_rabbitmq;

use crate::fixture::{
    blocking, by_id, close_connections, config, in_an_hour, job, open, queue, retry, stats,
    wait_until,
};
use dq_testkit::faults::TcpProxy;

async fn open_by_proxy(vhost: &str) -> (TcpProxy, Arc<dyn Backend>) {
    let mut config = config(vhost);
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    config.url = dq_core::config::Secret::new(proxy.url(config.url.expose()));
    // A call without a reply waits this long.
    config.response_timeout = Duration::from_secs(4);
    let backend = open(&config).await;
    (proxy, backend)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_of_a_lost_connection_remains() {
    const VHOST: &str = "lost-tasks";
    let backend = open(&config(VHOST)).await;
    let _wakeups = backend.listen(&[queue("q")]).await.unwrap();
    let consumer = || {
        let list = ["-q", "list_consumers", "-p", VHOST, "queue_name", "channel_pid"];
        let listed = shared_rabbitmq().ctl(&list);
        let of_queue = listed.lines().find_map(|line| line.strip_prefix("dq.v1.q.q\t"));
        of_queue.map(str::to_owned)
    };
    let mut channel = None;
    let mut next_channel = async || {
        for _ in 0..600 {
            let found = blocking(consumer).await;
            if found.is_some() && found != channel {
                channel = found;
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the queue is not consumed on another channel");
    };
    next_channel().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (mut before, mut equal) = (tasks(), 0);
    while equal < 10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        equal = if tasks() == before { equal + 1 } else { 0 };
        before = tasks();
    }
    for _ in 0..8 {
        blocking(|| close_connections(VHOST)).await;
        next_channel().await;
    }
    // A task for each lost connection would be eight more. Some may be at work for a moment.
    wait_until("as many tasks as before", async || tasks() <= before + 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeating_a_call_after_a_lost_reply_is_safe() {
    let (proxy, backend) = open_by_proxy("answers").await;
    for bytes in [0, 1, 30, 100] {
        let new = in_an_hour(job("q"));
        let target = [by_id(&new)];
        proxy.cut_reply_after(bytes);
        let first = backend.schedule(vec![new.clone()]).await;
        match first {
            Ok(first) => assert!(first[0].is_stored()),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                let view = retry(|| backend.get(&target[0])).await;
                assert_eq!(view, None, "the call was not sent: {error}");
            }
        }
        let again = retry(|| backend.schedule(vec![new.clone()])).await;
        assert!(matches!(again[..], [Scheduled::Created(receipt)] if receipt.id == new.id));
        proxy.cut_reply_after(bytes);
        let first = backend.cancel(&target).await;
        let again = retry(|| backend.cancel(&target)).await;
        match first {
            Ok(first) => {
                assert_eq!((first, again), (vec![Cancelled::Cancelled], vec![Cancelled::NotFound]))
            }
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert_eq!(again, [Cancelled::Cancelled], "the call was not sent");
            }
        }
        assert_eq!(stats(&*backend, "q").await.scheduled, 0);
    }
    let totals = stats(&*backend, "q").await.totals.unwrap();
    assert_eq!((totals.created, totals.cancelled), (4, 4));
}
