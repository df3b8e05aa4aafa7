//! Redis Cluster and Sentinel.

use std::time::{Duration, Instant};

use dq_servers::{Redis, RedisCluster, Sentinel};

#[test]
fn a_cluster_distributes_the_slots() {
    let cluster = RedisCluster::start(3);
    for (key, index) in [("b", 0), ("c", 1), ("a", 2)] {
        let owner = cluster.owner(key);
        assert_eq!(owner.port(), cluster.nodes()[index].port(), "owner of {key}");
        assert!(owner.command(&["SET", key, "v"]).is_ok());
    }
    let refused = cluster.nodes()[0].command(&["MGET", "a", "b"]);
    assert!(refused.error().starts_with("CROSSSLOT"), "{refused:?}");
    let moved = cluster.nodes()[0].command(&["GET", "a"]);
    let address = format!(" 127.0.0.1:{}", cluster.nodes()[2].port());
    assert!(moved.error().starts_with("MOVED ") && moved.error().ends_with(&address), "{moved:?}");

    cluster.nodes()[1].kill();
    cluster.nodes()[1].restart();
    cluster.wait_until_healthy();
}

#[test]
fn a_sentinel_fails_over_to_the_replica() {
    let primary = Redis::options().password("secret1").start();
    let replica = Redis::options().password("secret1").replica_of(&primary).start();
    let sentinel = Sentinel::start(&primary, "jobs");

    primary.kill();
    // A Sentinel starved of CPU takes no action for 30 s (its mode TILT).
    let deadline = Instant::now() + Duration::from_secs(120);
    while sentinel.primary_port() != replica.port() {
        assert!(Instant::now() < deadline, "no replica was promoted");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(replica.command(&["SET", "k", "v"]).is_ok());
}
