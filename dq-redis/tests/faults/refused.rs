//! Connecting refuses unusable servers with the reason and a remedy, and without the password.
//! `check` reports usable servers that may lose jobs.

use dq_core::{ErrorKind, Severity};
use dq_servers::{Redis, RedisCluster, Sentinel};

use crate::faults::fixture::{
    PASSWORD, assert_error, claim, connect, found, job, open, retry, wait_until,
};

#[tokio::test]
async fn no_server_a_wrong_login_or_no_tls() {
    use ErrorKind::{Config, Unavailable};
    let (plain, locked) = (Redis::start(), Redis::options().password("secret1").start());
    let stopped = Redis::start();
    let gone = stopped.address();
    stopped.stop();
    let (plain, locked) = (&plain.address(), &locked.address());
    for (url, kind, words) in [
        (format!("redis://u:{PASSWORD}@{gone}/0"), Unavailable, &[gone.as_str(), "runs"][..]),
        (format!("redis+unix://:{PASSWORD}@/nowhere/redis.sock"), Unavailable, &[]),
        (format!("redis+cluster://:{PASSWORD}@{gone}"), Unavailable, &[]),
        (format!("redis+sentinel://:{PASSWORD}@{gone}/main"), Unavailable, &[]),
        ("redis://no-such-host.invalid/0".to_owned(), Unavailable, &["invalid"]),
        (format!("redis://:{PASSWORD}@{locked}/0"), Config, &["password"]),
        (format!("redis://nobody:{PASSWORD}@{locked}/0"), Config, &["password"]),
        (format!("redis://{locked}/0"), Config, &["password"]),
        (format!("redis://:{PASSWORD}@{plain}/0"), Config, &["password", "leave them out"]),
        (format!("rediss://{plain}?response_timeout=1s"), Unavailable, &["TLS", "redis://"]),
        (format!("rediss+cluster://{plain}?response_timeout=1s"), Unavailable, &["TLS"]),
    ] {
        let error = assert_error(connect(&url).await, kind, words);
        assert_eq!(error.is_retryable(), kind == Unavailable, "{url}");
    }
}

#[tokio::test]
async fn servers_whose_topology_needs_another_scheme() {
    let cluster = RedisCluster::start(1);
    let node = cluster.nodes()[0].address();
    let plain = Redis::start();
    let sentinel = Sentinel::start(&plain, "jobs");
    for (url, remedy) in [
        (format!("redis://{node}"), "redis+cluster://"),
        (format!("redis://{node}/1"), "redis+cluster://"),
        (format!("redisson://{node}"), "redis+cluster://"),
        (format!("redis-expiry://{node}"), "redis+cluster://"),
        (format!("redis+sentinel://{node}/jobs"), "redis://"),
        (format!("redis+cluster://{}", plain.address()), "redis://"),
        (format!("redis+sentinel://{}/jobs", plain.address()), "redis://"),
        (format!("redis://{}", sentinel.address()), "redis+sentinel://"),
        (format!("redis://{}/1", sentinel.address()), "redis+sentinel://"),
        // The error names `redis://`, whose own error then names `redis+sentinel://`.
        (format!("redis+cluster://{}", sentinel.address()), "redis://"),
    ] {
        let error = assert_error(connect(&url).await, ErrorKind::Config, &[]);
        println!("{url}: {error}");
        assert!(error.remedy_text().is_some_and(|text| text.contains(remedy)), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_database_that_does_not_exist() {
    let redis = Redis::options().set("databases", "2").start();
    let url = |number: u16| format!("redis://{}/{number}", redis.address());
    assert_error(connect(&url(7)).await, ErrorKind::Config, &["DB index", "databases"]);
    let backend = open(&url(1)).await;
    backend.schedule(vec![job("q")]).await.unwrap();
    let other = open(&url(0)).await;
    assert!(claim(&*other, &["q"], 1).await.unwrap().jobs.is_empty(), "databases are separate");
}

#[tokio::test]
async fn no_scripts() {
    for command in ["EVAL", "EVALSHA"] {
        let redis = Redis::options().set(&format!("rename-command {command}"), "\"\"").start();
        assert_error(
            connect(&redis.url()).await,
            ErrorKind::Incompatible,
            &["scripts", "Lua", command],
        );
    }
    let redis = Redis::start();
    for denied in ["-eval", "-evalsha", "-@scripting"] {
        let acl = ["ACL", "SETUSER", "u", "reset", "on", ">secret1", "~*", "&*", "+@all", denied];
        assert!(redis.command(&acl).is_ok());
        let url = format!("redis://u:secret1@{}/0", redis.address());
        assert_error(connect(&url).await, ErrorKind::Config, &["NOPERM", "rights"]);
    }
}

#[tokio::test]
async fn no_hello() {
    let redis = Redis::options().set("rename-command HELLO", "\"\"").start();
    assert_error(
        connect(&redis.url()).await,
        ErrorKind::Incompatible,
        &["older than 6.2", "HELLO", "rename"],
    );
}

#[tokio::test]
async fn a_replica() {
    let primary = Redis::start();
    let replica = Redis::options().replica_of(&primary).start();
    assert_error(connect(&replica.url()).await, ErrorKind::ReadOnly, &["replica", "primary"]);
    let backend = open(&primary.url()).await;
    let port = replica.port().to_string();
    assert!(replica.command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    assert!(primary.command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    assert_error(
        backend.schedule(vec![job("q")]).await,
        ErrorKind::ReadOnly,
        &["READONLY", "primary"],
    );
    assert!(primary.command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    backend.schedule(vec![job("q")]).await.expect("it is the primary again");
}

#[tokio::test]
async fn too_many_clients() {
    let redis = Redis::options().set("maxclients", "3").start();
    let mut first = redis.connect();
    // The connections from the startup check may still be open.
    wait_until("no other client is connected", || {
        let clients = first.command(&["INFO", "clients"]).text();
        std::future::ready(clients.contains("connected_clients:1\r"))
    })
    .await;
    let mut held = vec![first];
    held.extend((0..2).map(|_| redis.connect()));
    held.iter_mut()
        .for_each(|connection| assert_eq!(connection.command(&["PING"]).bytes(), b"PONG"));
    let error = assert_error(connect(&redis.url()).await, ErrorKind::Unavailable, &[]);
    assert!(error.is_retryable());
    drop(held);
    let url = redis.url();
    retry(|| connect(&url)).await;
}

#[tokio::test]
async fn check_reports_a_server_that_evicts() {
    let redis = Redis::start();
    let backend = open(&redis.url()).await;
    assert_eq!(found(&backend.check().await, "redis.no-aof").severity, Severity::Warning);
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let findings = backend.check().await;
    let evicts = found(&findings, "redis.evicts");
    assert_eq!(evicts.severity, Severity::Error);
    assert!(evicts.cause.contains("allkeys-lru") && evicts.remedy.contains("noeviction"));
    redis.kill();
    found(&backend.check().await, "redis.unreachable");

    let durable = Redis::options().aof().start();
    let findings = open(&durable.url()).await.check().await;
    assert!(findings.is_empty(), "{findings:?}");
}
