//! Redis Cluster, Sentinel, and TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_servers::{RabbitMq, Redis, RedisCluster, Sentinel};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

#[test]
fn a_cluster_distributes_the_slots() {
    let cluster = RedisCluster::start(3);
    assert_eq!(cluster.urls().len(), 3);
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
    assert_eq!(sentinel.name(), "jobs");
    assert_eq!(sentinel.url(), format!("redis://127.0.0.1:{}", sentinel.port()));

    primary.kill();
    // A Sentinel starved of CPU takes no action for 30 s (its mode TILT).
    let deadline = Instant::now() + Duration::from_secs(120);
    while sentinel.primary_port() != replica.port() {
        assert!(Instant::now() < deadline, "no replica was promoted");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(replica.command(&["SET", "k", "v"]).is_ok());
}

#[test]
fn tls_servers_have_certificates_of_their_own_ca() {
    let redis = Redis::options().tls().start();
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}/0", redis.port()));
    let pong = exchange(redis.address(), with_ca(&redis.ca()), b"PING\r\n");
    assert_eq!(pong.expect("a reply"), *b"+PONG");
    exchange(redis.address(), without_ca(), b"PING\r\n").expect_err("an unknown CA");

    let rabbit = RabbitMq::options().tls().start();
    assert_eq!(rabbit.url(), format!("amqps://dq:secret@127.0.0.1:{}/%2f", rabbit.port()));
    let hello = b"AMQP\x00\x00\x09\x01";
    let start = exchange(rabbit.address(), with_ca(&rabbit.ca()), hello).expect("a reply");
    assert_eq!(start[..3], [1, 0, 0], "a method on channel 0");
    exchange(rabbit.address(), with_ca(&redis.ca()), hello).expect_err("another CA");
}

fn with_ca(authority: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(authority).expect("a certificate");
    roots.add(authority).expect("a CA certificate");
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

fn without_ca() -> ClientConfig {
    let empty = RootCertStore::empty();
    ClientConfig::builder().with_root_certificates(empty).with_no_client_auth()
}

/// Sends a request over TLS and returns the first bytes of the reply.
fn exchange(address: String, client: ClientConfig, request: &[u8]) -> std::io::Result<[u8; 5]> {
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let client = ClientConnection::new(Arc::new(client), name).expect("a client");
    let mut stream = StreamOwned::new(client, TcpStream::connect(address)?);
    stream.write_all(request)?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
