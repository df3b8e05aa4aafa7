//! Many idle workers cost the store as much as one runner, and the server little memory.

use std::time::{Duration, Instant};

use dq_servers::Redis;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::task::{JoinSet, spawn_blocking};

use crate::server::{Server, request, schedule, work};

const POLLS: usize = 1_000;

/// For the server and for the polls' own buffers.
const MAX_BYTES_PER_POLL: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_polls_cost_as_much_as_a_runner() {
    // Each poll needs a socket here and one in the server, which inherits the limit.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let scene = spawn_blocking(|| {
        let redis = Redis::start();
        (Server::start(&redis.url()), redis)
    });
    let (server, redis) = scene.await.unwrap();
    assert_eq!(statuses(poll(&server, 1, "1s")).await, [204]);
    let (calls, memory, start) = (scripts(&redis), resident(server.id()), Instant::now());
    let polls = poll(&server, POLLS, "20s");
    tokio::time::sleep(Duration::from_secs(15)).await;
    let growth = resident(server.id()).saturating_sub(memory);
    assert_eq!(statuses(polls).await, [204; POLLS]);
    let (calls, seconds) = (scripts(&redis) - calls, start.elapsed().as_secs());

    println!("{POLLS} polls: {calls} store calls in {seconds} s, {growth} bytes more");
    // A runner without work makes one call a second, and a few to announce itself.
    assert!((1..=2 * seconds).contains(&calls), "{calls} store calls in {seconds} s");
    assert!(growth <= POLLS as u64 * MAX_BYTES_PER_POLL, "{growth} bytes for {POLLS} polls");

    // Far shorter than the lease: no late poll gets the job again.
    let polls = poll(&server, POLLS, "30s");
    schedule(&server.address, "A", work(0, "done"), 2_000).await;
    let statuses = statuses(polls).await;
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((served, statuses.len()), (1, POLLS), "one poll gets the job");
}

/// Starts to wait for jobs on this many connections.
fn poll(server: &Server, polls: usize, wait: &str) -> JoinSet<u16> {
    let claim = json!({ "queues": { "A": 1 }, "wait": wait, "lease": "5m" });
    let polls = (0..polls).map(|_| {
        let (address, claim) = (server.address.clone(), claim.clone());
        async move { request(&address, "POST", "/v1/claims", "", &claim).await.unwrap().0 }
    });
    polls.collect()
}

async fn statuses(polls: JoinSet<u16>) -> Vec<u16> {
    polls.join_all().await
}

/// How many scripts the server has run in the store: each of its calls is one.
fn scripts(redis: &Redis) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).text();
    let calls =
        stats.split_once("cmdstat_evalsha:calls=").and_then(|(_, rest)| rest.split_once(','));
    calls.map_or(0, |(calls, _)| calls.parse().unwrap())
}

/// The process's memory in bytes.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
