//! More than one server, and servers that want more than a plain connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_servers::{Redis, RedisCluster, Sentinel};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};

#[test]
fn a_cluster_shares_the_slots() {
    let cluster = RedisCluster::start(3);
    assert_eq!(cluster.urls().len(), 3);
    for (key, place) in [("b", 0), ("c", 1), ("a", 2)] {
        let owner = cluster.owner(key);
        assert_eq!(owner.port(), cluster.nodes()[place].port(), "owner of {key}");
        assert!(owner.command(&["SET", key, "v"]).is_ok());
    }
    let refused = cluster.nodes()[0].command(&["MGET", "a", "b"]);
    assert!(refused.error().starts_with("CROSSSLOT"), "{refused:?}");
    let moved = cluster.nodes()[0].command(&["GET", "a"]);
    let place = format!(" 127.0.0.1:{}", cluster.nodes()[2].port());
    assert!(moved.error().starts_with("MOVED ") && moved.error().ends_with(&place), "{moved:?}");

    cluster.nodes()[1].kill();
    cluster.nodes()[1].restart();
    cluster.until_well();
}

#[test]
fn a_sentinel_knows_its_primary_and_its_successor() {
    let primary = Redis::options().password("secret1").start();
    let replica = Redis::options().password("secret1").replica_of(&primary).start();
    let sentinel = Sentinel::start(&primary, "jobs");
    assert_eq!(sentinel.name(), "jobs");
    assert_eq!(sentinel.url(), format!("redis://127.0.0.1:{}", sentinel.port()));
    assert_eq!(sentinel.primary_port(), primary.port());

    primary.kill();
    let deadline = Instant::now() + Duration::from_secs(30);
    while sentinel.primary_port() != replica.port() {
        assert!(Instant::now() < deadline, "nobody follows the primary");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(replica.command(&["SET", "k", "v"]).is_ok());
}

#[test]
fn a_server_with_tls_is_who_its_authority_says() {
    let redis = Redis::options().tls().start();
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}/0", redis.port()));
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(redis.ca()).expect("a certificate");
    roots.add(authority).expect("an authority");
    let trusting = rustls::ClientConfig::builder().with_root_certificates(roots);
    assert_eq!(ping(&redis, trusting.with_no_client_auth()).expect("an answer"), *b"+PONG");

    let nobody = rustls::RootCertStore::empty();
    let wary = rustls::ClientConfig::builder().with_root_certificates(nobody);
    ping(&redis, wary.with_no_client_auth()).expect_err("an unknown authority");
}

fn ping(redis: &Redis, client: rustls::ClientConfig) -> std::io::Result<[u8; 5]> {
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(client), name).expect("a client");
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(redis.address())?);
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
