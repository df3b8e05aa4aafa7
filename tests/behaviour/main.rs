//! The behaviour suite on every backend of this workspace, by URL, as applications open them.

mod sharded;

use std::process::ExitCode;
use std::sync::OnceLock;

use dq_servers::{Redis, RedisCluster, shared_rabbitmq, shared_redis};
use dq_testkit::behaviour::{self, Address, ByUrl};
use tempfile::TempDir;

use sharded::Sharded;

// A backend registers itself only if its crate is named somewhere.
use dq as _;

fn main() -> ExitCode {
    let common = directory();
    let common_file = url(&common, "?durability=relaxed&busy_timeout=30s");
    behaviour::main(vec![
        ("memory/virtual", Box::new(ByUrl::on_virtual_time(|| "memory:".into()))),
        ("memory/real", Box::new(ByUrl::real(|| "memory:".into()))),
        ("sqlite/virtual", Box::new(ByUrl::on_virtual_time(own_file))),
        ("sqlite/real", Box::new(ByUrl::real(own_file))),
        // All trials at once on one store: none may notice the others.
        ("sqlite/crowd", Box::new(ByUrl::real(move || common_file.as_str().into()))),
        ("redis", Box::new(ByUrl::real(|| patient(&shared_redis().url(), "")))),
        ("redis/cluster", Box::new(ByUrl::real(|| patient(cluster_url(), "")))),
        ("redis/sharded", Box::new(Sharded::new(|| shared_redis().url(), 4))),
        ("redis/sharded-cluster", Box::new(Sharded::new(|| cluster_url().to_owned(), 5))),
        ("redisson", Box::new(ByUrl::real(|| redisson("")))),
        ("redisson/exact", Box::new(ByUrl::real(|| redisson("&java_visibility=exact")))),
        (
            "redisson/legacy",
            Box::new(ByUrl::real(|| redisson("&format=legacy&java_visibility=approximate"))),
        ),
        ("redisson/cluster", Box::new(ByUrl::real(redisson_cluster))),
        ("redis-expiry", Box::new(ByUrl::real(|| expiry(notifying_redis(), "")))),
        ("rabbitmq", Box::new(ByUrl::real(|| patient(&shared_rabbitmq().url(), "")))),
        ("redis-expiry/off", Box::new(ByUrl::real(|| expiry(shared_redis(), "&prefix=expiry")))),
    ])
}

/// A server, used with further options. No answer takes as long as this, whatever the machine.
fn patient(url: &str, options: &str) -> Address {
    format!("{url}?response_timeout=60s{options}").as_str().into()
}

/// A Redis server, used with key expiry.
fn expiry(server: &Redis, options: &str) -> Address {
    patient(&server.url().replacen("redis://", "redis-expiry://", 1), options)
}

/// One server that says when keys expire, for all trials. It ends with the process.
fn notifying_redis() -> &'static Redis {
    static NOTIFYING: OnceLock<Redis> = OnceLock::new();
    NOTIFYING.get_or_init(|| Redis::options().set("notify-keyspace-events", "Ex").start())
}

/// The common Redis server, used as Redisson does.
fn redisson(options: &str) -> Address {
    patient(&shared_redis().url().replacen("redis://", "redisson://", 1), options)
}

/// The common cluster, used as Redisson does.
fn redisson_cluster() -> Address {
    patient(&cluster_url().replacen("redis+", "redisson+", 1), "")
}

/// One cluster for all trials. It ends with the process.
fn cluster_url() -> &'static str {
    static CLUSTER: OnceLock<(RedisCluster, String)> = OnceLock::new();
    let (_, url) = CLUSTER.get_or_init(|| {
        let cluster = RedisCluster::start(3);
        let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
        let url = format!("redis+cluster://{}", nodes.join(","));
        (cluster, url)
    });
    url
}

/// A file that goes when the trial ends.
fn own_file() -> Address {
    let directory = directory();
    Address { url: url(&directory, ""), keep: Box::new(directory) }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("there is room for temporary files")
}

fn url(directory: &TempDir, options: &str) -> String {
    format!("sqlite://{}{options}", directory.path().join("jobs.db").display())
}
