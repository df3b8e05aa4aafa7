//! Kills runner processes at random while a schedule fires each second, on every store that several
//! processes can use. Each occurrence must be exactly one job.
//!
//! Each trial runs this program again as the processes to kill; see [`process`]. `DQ_KILL_ROUNDS`
//! sets the rounds of kills per trial.

mod process;
mod trial;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use dq_servers::{Redis, RedisCluster, shared_rabbitmq, shared_redis};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(options) = process::Options::from_env() {
        return process::run(&options);
    }
    let trials: Vec<Trial> = [
        ("sqlite", sqlite as fn() -> trial::Store),
        ("redis", redis),
        ("redis/cluster", cluster),
        ("redisson", || shared_redis().url().replacen("redis://", "redisson://", 1).into()),
        ("redis-expiry", expiry),
        ("rabbitmq", rabbitmq),
    ]
    .into_iter()
    .map(|(name, store)| {
        Trial::test(format!("killed_at_random/{name}"), move || trial::run(store()))
    })
    .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn sqlite() -> trial::Store {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let url = format!("sqlite://{}", directory.path().join("jobs.db").display());
    trial::Store { url, _guard: Box::new(directory) }
}

/// Its own server, because a store keeps all schedules in one queue.
fn redis() -> trial::Store {
    let server = Redis::start();
    trial::Store { url: server.url(), _guard: Box::new(server) }
}

fn rabbitmq() -> trial::Store {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    shared_rabbitmq().vhost(&format!("recurring_{number}")).into()
}

fn cluster() -> trial::Store {
    let cluster = RedisCluster::start(3);
    let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
    let url = format!("redis+cluster://{}", nodes.join(","));
    trial::Store { url, _guard: Box::new(cluster) }
}

fn expiry() -> trial::Store {
    let server = Redis::options().set("notify-keyspace-events", "Ex").start();
    let url = server.url().replacen("redis://", "redis-expiry://", 1);
    trial::Store { url, _guard: Box::new(server) }
}
