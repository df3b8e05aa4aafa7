//! The behaviour suite on every workspace backend. The trials open backends by URL, as applications
//! do, except for sharded queues.

mod sharded;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dq::backend::backend_from_url;
use dq_servers::{Redis, RedisCluster, shared_postgres, shared_rabbitmq, shared_redis};
use dq_testkit::behaviour::{self, BackendUnderTest, StoreUrl, UrlBackend};
use tempfile::TempDir;

use sharded::Sharded;

fn main() -> ExitCode {
    let common = directory();
    let common_file = url(&common, "?durability=relaxed&busy_timeout=30s");
    let exit = behaviour::main(vec![
        ("memory/virtual", virtual_clock(|| "memory:".into())),
        ("memory/real", real_clock(|| "memory:".into())),
        ("sqlite/virtual", virtual_clock(own_file)),
        ("sqlite/real", real_clock(own_file)),
        // All trials share one store, so each must be unaffected by the others.
        ("sqlite/common", real_clock(move || common_file.as_str().into())),
        ("redis", real_clock(|| with_long_timeout(&shared_redis().url(), ""))),
        ("redis/cluster", real_clock(|| with_long_timeout(cluster_url(), ""))),
        ("redis/sharded", Box::new(Sharded::new(|| shared_redis().url(), 4))),
        ("redis/sharded-cluster", Box::new(Sharded::new(|| cluster_url().to_owned(), 5))),
        ("redisson", real_clock(|| redisson_url(1, ""))),
        ("redisson/exact", real_clock(|| redisson_url(2, "&java_visibility=exact"))),
        (
            "redisson/legacy",
            real_clock(|| redisson_url(3, "&format=legacy&java_visibility=approximate")),
        ),
        ("redisson/cluster", real_clock(redisson_cluster_url)),
        ("redis-expiry", real_clock(|| expiry_url(notifying_redis(), ""))),
        // Without notifications, this backend works like `redis`.
        ("redis-expiry/off", real_clock(|| expiry_url(shared_redis(), ""))),
        ("rabbitmq", real_clock(rabbitmq_url)),
        // All trials share one store.
        ("postgres", real_clock(postgres_url)),
    ]);
    if exit != ExitCode::SUCCESS && RABBITMQ_STORES.load(Ordering::Relaxed) > 0 {
        eprintln!("RabbitMQ complains:\n{}", shared_rabbitmq().complaints());
    }
    exit
}

fn real_clock(url: impl Fn() -> StoreUrl + Send + Sync + 'static) -> Box<dyn BackendUnderTest> {
    Box::new(UrlBackend::with_real_clock(url))
}

fn virtual_clock(url: impl Fn() -> StoreUrl + Send + Sync + 'static) -> Box<dyn BackendUnderTest> {
    Box::new(UrlBackend::with_virtual_clock(url))
}

/// Adds options and a response timeout longer than any call takes on a busy machine.
fn with_long_timeout(url: &str, options: &str) -> StoreUrl {
    format!("{url}?response_timeout=60s{options}").as_str().into()
}

fn expiry_url(server: &Redis, options: &str) -> StoreUrl {
    with_long_timeout(&server.url().replacen("redis://", "redis-expiry://", 1), options)
}

fn notifying_redis() -> &'static Redis {
    static NOTIFYING: OnceLock<Redis> = OnceLock::new();
    NOTIFYING.get_or_init(|| Redis::options().set("notify-keyspace-events", "Ex").start())
}

/// Each format has its own database, because all trials' runners share the queue of schedules.
fn redisson_url(database: u8, options: &str) -> StoreUrl {
    let address = shared_redis().address();
    with_long_timeout(&format!("redisson://{address}/{database}"), options)
}

fn redisson_cluster_url() -> StoreUrl {
    with_long_timeout(&cluster_url().replacen("redis+", "redisson+", 1), "")
}

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

/// Counts the trials' stores.
static RABBITMQ_STORES: AtomicU32 = AtomicU32::new(0);

/// Eight stores on one server. A process reads its store's whole log, so with one store each trial
/// would apply the calls of all, and with one per trial the server would declare thousands of
/// queues.
fn rabbitmq_url() -> StoreUrl {
    let store = RABBITMQ_STORES.fetch_add(1, Ordering::Relaxed) % 8;
    with_long_timeout(&shared_rabbitmq().url(), &format!("&prefix=suite{store}"))
}

/// The printed SQL has created the schema, and the role only has the rights that it grants.
fn postgres_url() -> StoreUrl {
    static URL: OnceLock<String> = OnceLock::new();
    let url = URL.get_or_init(|| {
        let (server, role) = (shared_postgres(), "runner");
        let url = server.create_database();
        let config = backend_from_url(&url).expect("a URL");
        let sql = config.schema_sql(Some(role)).expect("PostgreSQL has a schema");
        let sql = format!("CREATE ROLE {role} LOGIN; {sql}");
        server.psql(&url, &sql).expect("the printed SQL runs");
        url.replace("dq@", "runner@")
    });
    with_long_timeout(url, "&connections=2")
}

fn own_file() -> StoreUrl {
    let directory = directory();
    StoreUrl { url: url(&directory, ""), guard: Box::new(directory) }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn url(directory: &TempDir, options: &str) -> String {
    format!("sqlite://{}{options}", directory.path().join("jobs.db").display())
}
