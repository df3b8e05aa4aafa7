//! A private Redis server: commands, crash, stop, freeze, settings.

use std::net::TcpStream;

use dq_servers::{Redis, Reply};

#[test]
fn a_server_replies_and_its_directory_is_removed() {
    let redis = Redis::start();
    assert_ne!(redis.port(), 6379);
    assert!(redis.command(&["SET", "k", "v"]).is_ok());
    assert_eq!(redis.command(&["GET", "k"]).text(), "v");
    assert!(redis.command(&["GET", "none"]).is_nil());
    assert_eq!(redis.command(&["INCR", "n"]).int(), 1);
    assert!(redis.command(&["LPUSH", "k", "x"]).error().starts_with("WRONGTYPE"));
    assert!(redis.command_bytes(&[b"SET", b"raw", b"\0\xff\r\n"]).is_ok());
    let list = redis.command(&["MGET", "raw", "none"]);
    assert_eq!(list.list(), [Reply::Text(b"\0\xff\r\n".to_vec()), Reply::Nil]);
    TcpStream::connect(redis.address()).expect("the port is open");

    let (dir, address) = (redis.dir().to_owned(), redis.address());
    assert!(dir.join("log").exists());
    drop(redis);
    assert!(!dir.exists());
    TcpStream::connect(address).expect_err("the port is closed");
}

#[test]
fn only_persisted_data_survives_a_crash() {
    let [durable, volatile] = [Redis::options().aof().start(), Redis::start()];
    for redis in [&durable, &volatile] {
        redis.command(&["SET", "k", "v"]);
        let port = redis.port();
        redis.kill();
        TcpStream::connect(redis.address()).expect_err("the port is closed");
        redis.restart();
        assert_eq!(redis.port(), port);
    }
    // Frozen servers can be stopped too.
    durable.freeze();
    durable.stop();
    assert!(durable.log().contains("bye bye"), "{}", durable.log());
    durable.restart();
    assert_eq!(durable.command(&["GET", "k"]).text(), "v");
    assert!(volatile.command(&["GET", "k"]).is_nil());
}

#[test]
fn settings_are_applied() {
    let redis = Redis::options().set("maxmemory", "1mb").set("maxmemory", "20mb").start();
    let reply = redis.command(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(reply.list()[1].text(), "20971520");
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}/0", redis.port()));

    let locked = Redis::options().password("secret1").start();
    assert_eq!(locked.command(&["PING"]).text(), "PONG");
    assert_eq!(locked.url(), format!("redis://:secret1@127.0.0.1:{}/0", locked.port()));
}

#[test]
#[should_panic(expected = "no-such-directive")]
fn a_failed_start_panics_with_the_reason() {
    Redis::options().set("no-such-directive", "1").start();
}
