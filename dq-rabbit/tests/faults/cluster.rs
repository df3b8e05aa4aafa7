//! A cluster of three nodes, of which one is killed, partitioned, or restarted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Backend, BrowseParams, JobState, NewJob};
use dq_rabbit::{LadderKind, QueueKind, RabbitConfig};
use dq_servers::{RabbitCluster, RabbitMq};
use tokio_util::sync::CancellationToken;

use crate::fixture::{
    TIMEOUT, TestRunner, after, blocking, by_id, in_an_hour, job, open, queue, retry, start_runner,
    stats, wait_until,
};

/// The nodes are tried in turn, beginning with `first`.
fn config_for(cluster: &RabbitCluster, first: usize) -> RabbitConfig {
    let nodes = cluster.nodes();
    let mut hosts: Vec<_> = nodes.iter().map(|node| node.address()).collect();
    hosts.rotate_left(first);
    let mut config = RabbitConfig::new(format!("amqp://dq:secret@{}", hosts.join(",")));
    // Only a fault loses a reply, not a slow machine.
    config.response_timeout = Duration::from_secs(60);
    config
}

async fn with<T: Send + 'static>(
    cluster: &Arc<RabbitCluster>,
    call: impl FnOnce(&RabbitCluster) -> T + Send + 'static,
) -> T {
    let cluster = Arc::clone(cluster);
    blocking(move || call(&cluster)).await
}

fn restart(cluster: &RabbitCluster) {
    cluster.nodes()[1].restart();
    cluster.wait_until_healthy();
}

/// Due evenly from `from` milliseconds on, for `over` milliseconds.
async fn schedule_jobs(backend: &Arc<dyn Backend>, from: u64, over: u64) -> Vec<NewJob> {
    let jobs: Vec<_> = (0..200).map(|n| after(from + over * n / 200, job("q"))).collect();
    for jobs in jobs.chunks(50) {
        retry(|| backend.schedule(jobs.to_vec())).await;
    }
    jobs
}

async fn expect_all_done(
    runner: &mut TestRunner,
    jobs: &[NewJob],
    backend: &Arc<dyn Backend>,
    done: u64,
) {
    let counts = runner.wait_for_all(jobs).await;
    // If the reply to a chunk of 50 is lost, its jobs may be done before the call is repeated, and
    // count as new. Up to a thousand jobs run again because their settlements were lost.
    let again = counts.values().filter(|count| **count > 1).count();
    println!("{again} of {} jobs ran again", jobs.len());
    // A job is in flight during two faults at most, even in a rolling restart.
    assert!(counts.values().all(|count| *count <= 3), "{counts:?}");
    wait_until("all are done", async || {
        let counts = &retry(|| backend.stats(&[])).await[0];
        counts.totals.unwrap().done >= done && counts.live() == 0
    })
    .await;
}

async fn wait_for_replicas(backend: &Arc<dyn Backend>, are_down: bool) {
    wait_until(&format!("replicas are down: {are_down}"), async || {
        let findings = backend.check().await;
        let found = |code: &str| findings.iter().any(|finding| finding.code == code);
        !found("rabbitmq.unreachable") && found("rabbitmq.replicas-down") == are_down
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_one_node_loses_no_job() {
    let start = || RabbitMq::options().management().start_cluster(3);
    let cluster = Arc::new(blocking(start).await);
    // The runner is connected to the node that fails, the producer to another.
    let backend = open(&config_for(&cluster, 1)).await;
    let mut config = config_for(&cluster, 0);
    config.management = Some(Secret::new(cluster.nodes()[0].management_url()));
    let producer = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;

    let mut jobs = schedule_jobs(&producer, 3_000, 3_000).await;
    with(&cluster, |it| it.nodes()[1].kill()).await;
    jobs.extend(schedule_jobs(&producer, 2_000, 2_000).await);
    expect_all_done(&mut runner, &jobs, &producer, 400).await;
    wait_for_replicas(&producer, true).await;
    with(&cluster, restart).await;

    wait_for_replicas(&producer, false).await;

    // The runner has moved to this node when node 1 was killed.
    let mut jobs = schedule_jobs(&producer, 3_000, 3_000).await;
    with(&cluster, |it| it.partition(2)).await;
    jobs.extend(schedule_jobs(&producer, 2_000, 2_000).await);
    expect_all_done(&mut runner, &jobs, &producer, 800).await;
    with(&cluster, |it| it.heal()).await;

    let jobs = schedule_jobs(&producer, 3_000, 10_000).await;
    with(&cluster, |it| it.rolling_restart()).await;
    expect_all_done(&mut runner, &jobs, &producer, 1_000).await;
    assert_eq!(stats(&*open(&config_for(&cluster, 2)).await, "q").await.stored(), 0);
}

/// Without their node, declaring and consuming classic queues fails, and their messages are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_the_node_of_classic_queues_stops_no_job() {
    let cluster = Arc::new(blocking(|| RabbitMq::options().start_cluster(3)).await);
    // On the connection's node.
    let classic = |first| {
        let mut config = config_for(&cluster, first);
        config.queues = QueueKind::Classic;
        config
    };
    let owner = open(&classic(1)).await;
    let mut runner = start_runner(&owner, "q").await;
    let mut jobs = schedule_jobs(&owner, 4_000, 3_000).await;
    with(&cluster, |it| it.nodes()[1].kill()).await;
    jobs.extend(schedule_jobs(&owner, 2_000, 2_000).await);
    expect_all_done(&mut runner, &jobs, &owner, 400).await;
    let other = open(&classic(2)).await;
    let cancelled = in_an_hour(job("q"));
    retry(|| other.schedule(vec![cancelled.clone()])).await;
    let target = [by_id(&cancelled)];
    // A call may have cancelled it although its reply was lost.
    let _ = retry(|| other.cancel(&target)).await;
    let counts = stats(&*other, "q").await;
    assert_eq!((counts.scheduled, counts.totals.unwrap().cancelled), (0, 1));
}

fn newest_stream(cluster: &RabbitCluster) -> u32 {
    let queues = cluster.nodes()[0].ctl(&["-q", "list_queues", "name"]);
    let numbers = queues.lines().filter_map(|name| name.strip_prefix("dq.v1.log.")?.parse().ok());
    numbers.max().unwrap_or_default()
}

/// Numbers of consecutive streams differ by 2 (`Generation::next`).
async fn wait_for_changes(cluster: &Arc<RabbitCluster>, during: &str) {
    let deadline = tokio::time::Instant::now() + TIMEOUT * 2;
    let before = with(cluster, newest_stream).await;
    while with(cluster, newest_stream).await < before + 4 {
        assert!(tokio::time::Instant::now() < deadline, "{during}: the log does not go on");
    }
}

/// The smallest log has room for at least twice as many small jobs of three writers.
const KEPT: usize = 1_000;

/// Small jobs stay and are returned, after the first ones only some; large ones are cancelled.
async fn fill_log(backend: Arc<dyn Backend>, stop: CancellationToken) -> Vec<NewJob> {
    let mut kept = Vec::new();
    for round in 0.. {
        if stop.is_cancelled() {
            break;
        }
        if kept.len() < KEPT || round % 20 == 0 {
            let stays = in_an_hour(job("q"));
            let stays = stays.clone().payload(stays.id.to_bytes().to_vec());
            retry(|| backend.schedule(vec![stays.clone()])).await;
            kept.push(stays);
        }
        let goes: Vec<_> = (0..3).map(|_| in_an_hour(job("q")).payload(vec![1; 100_000])).collect();
        retry(|| backend.schedule(goes.clone())).await;
        let goes: Vec<_> = goes.iter().map(by_id).collect();
        retry(|| backend.cancel(&goes)).await;
    }
    kept
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_goes_from_stream_to_stream_while_nodes_fail() {
    let cluster = Arc::new(blocking(|| RabbitMq::options().start_cluster(3)).await);
    let small = |first| {
        let mut config = config_for(&cluster, first);
        config.ladder = LadderKind::None;
        config.log_size_mib = 16;
        config
    };
    let stop = CancellationToken::new();
    let mut writers = Vec::new();
    for first in 0..3 {
        writers.push(tokio::spawn(fill_log(open(&small(first)).await, stop.clone())));
    }
    wait_for_changes(&cluster, "with all nodes").await;
    with(&cluster, |it| it.nodes()[1].kill()).await;
    wait_for_changes(&cluster, "without the second node").await;
    with(&cluster, restart).await;
    with(&cluster, |it| it.partition(2)).await;
    wait_for_changes(&cluster, "with the third node cut off").await;
    with(&cluster, |it| it.heal()).await;
    wait_for_changes(&cluster, "with all nodes again").await;
    stop.cancel();

    let mut kept = BTreeMap::new();
    for writer in writers {
        let jobs = tokio::time::timeout(TIMEOUT * 2, writer).await.expect("the writer stops");
        kept.extend(jobs.unwrap().into_iter().map(|job| (job.id, job.payload)));
    }
    let fresh = open(&small(0)).await;
    let name = queue("q");
    // All that the writers have kept, which is more than callers may ask for.
    let params = BrowseParams::new(&name, JobState::Scheduled).limit(10_000).payloads(true);
    let page = retry(|| fresh.browse(params)).await;
    let found: BTreeMap<_, _> =
        page.jobs.into_iter().map(|view| (view.job.id, view.job.payload)).collect();
    let lost = kept.keys().filter(|id| !found.contains_key(id)).count();
    let back = found.keys().filter(|id| !kept.contains_key(id)).count();
    assert_eq!((lost, back), (0, 0), "lost jobs, and cancelled ones that are back");
    assert!(found == kept, "jobs have another payload");
    assert_eq!(stats(&*fresh, "q").await.dead, 0);
}
