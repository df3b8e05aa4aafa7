//! A cluster of three nodes, of which one is killed, partitioned, or restarted.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Backend, NewJob};
use dq_rabbit::RabbitConfig;
use dq_servers::RabbitCluster;

use crate::fixture::{TIMEOUT, TestRunner, after, blocking, job, open, retry, start_runner, stats};

/// Settings for this cluster. The nodes are tried in turn, beginning with `first`.
fn config_for(cluster: &RabbitCluster, first: usize) -> RabbitConfig {
    let nodes = cluster.nodes();
    let mut hosts: Vec<_> = nodes.iter().map(|node| node.address()).collect();
    hosts.rotate_left(first);
    let mut config = RabbitConfig::new(format!("amqp://dq:secret@{}", hosts.join(",")));
    config.response_timeout = Duration::from_secs(10);
    config
}

/// Schedules 200 jobs, due evenly from `from` milliseconds on for `over` milliseconds.
async fn schedule_jobs(backend: &Arc<dyn Backend>, from: u64, over: u64) -> Vec<NewJob> {
    let jobs: Vec<_> = (0..200).map(|n| after(from + over * n / 200, job("q"))).collect();
    for jobs in jobs.chunks(50) {
        retry(|| backend.schedule(jobs.to_vec())).await;
    }
    jobs
}

/// Waits until all of these jobs have run, and until `done` jobs in all are done.
async fn expect_all_done(
    runner: &mut TestRunner,
    jobs: &[NewJob],
    backend: &Arc<dyn Backend>,
    done: u64,
) {
    let counts = tokio::select! {
        counts = runner.wait_for_all(jobs) => counts,
        () = tokio::time::sleep(TIMEOUT * 3) => {
            panic!("not all run: {:?}", backend.stats(&[]).await)
        }
    };
    // If the reply to a chunk is lost, its jobs may be done before the call is repeated, and count
    // as new.
    let again = counts.values().filter(|count| **count > 1).count();
    assert!(again < 120, "{again} jobs ran again");
    crate::fixture::wait_until("all are done", async || {
        let counts = &retry(|| backend.stats(&[])).await[0];
        counts.totals.unwrap().done >= done && counts.live() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_one_node_loses_no_job() {
    let cluster = Arc::new(blocking(|| RabbitCluster::start(3)).await);
    // The runner is connected to the node that fails, the producer to another.
    let backend = open(&config_for(&cluster, 1)).await;
    let producer = open(&config_for(&cluster, 0)).await;
    let mut runner = start_runner(&backend, "q").await;

    // The runner's node is killed; it may be the leader of the log.
    let mut jobs = schedule_jobs(&producer, 3_000, 3_000).await;
    let killed = Arc::clone(&cluster);
    blocking(move || killed.nodes()[1].kill()).await;
    jobs.extend(schedule_jobs(&producer, 2_000, 2_000).await);
    expect_all_done(&mut runner, &jobs, &producer, 400).await;
    let restarted = Arc::clone(&cluster);
    blocking(move || {
        restarted.nodes()[1].restart();
        restarted.wait_until_healthy();
    })
    .await;

    // A network partition separates one node and its clients from the others.
    let mut jobs = schedule_jobs(&producer, 3_000, 3_000).await;
    let partitioned = Arc::clone(&cluster);
    blocking(move || partitioned.partition(2)).await;
    jobs.extend(schedule_jobs(&producer, 2_000, 2_000).await);
    expect_all_done(&mut runner, &jobs, &producer, 800).await;
    let healed = Arc::clone(&cluster);
    blocking(move || healed.heal()).await;

    // A rolling restart.
    let jobs = schedule_jobs(&producer, 3_000, 10_000).await;
    let rolled = Arc::clone(&cluster);
    blocking(move || rolled.rolling_restart()).await;
    expect_all_done(&mut runner, &jobs, &producer, 1_000).await;
    let counts = stats(&*open(&config_for(&cluster, 2)).await, "q").await;
    assert_eq!((counts.scheduled, counts.ready, counts.running, counts.dead), (0, 0, 0, 0));
}
