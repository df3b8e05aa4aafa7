//! Connections that the broker closes.

use std::time::Duration;

use dq_servers::shared_rabbitmq;

use crate::fixture::{blocking, close_connections, config, open, poll, queue, wait_until};

const VHOST: &str = "lost-tasks";

fn consuming_channel() -> Option<String> {
    let list = ["-q", "list_consumers", "-p", VHOST, "queue_name", "channel_pid"];
    let listed = shared_rabbitmq().ctl(&list);
    listed.lines().find_map(|line| line.strip_prefix("dq.v1.q.q\t")).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_of_a_lost_connection_remains() {
    let backend = open(&config(VHOST)).await;
    let _wakeups = backend.listen(&[queue("q")], "test").await.unwrap();
    let mut channel = None;
    let mut next_channel = async || {
        channel = Some(
            poll("another channel consumes the queue", async || {
                blocking(consuming_channel).await.filter(|found| channel.as_ref() != Some(found))
            })
            .await,
        );
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
