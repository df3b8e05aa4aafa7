//! Starts and removes private servers.

use std::net::TcpStream;

use dq_servers::{PgBouncer, Postgres, RabbitMq, Redis};

#[test]
fn a_dropped_server_leaves_neither_its_directory_nor_its_port() {
    let (redis, rabbit, postgres) = (Redis::start(), RabbitMq::start(), Postgres::start());
    let pgbouncer = PgBouncer::start(&postgres);
    let left = [
        (redis.dir(), redis.address()),
        (rabbit.dir(), rabbit.address()),
        (postgres.dir(), postgres.address()),
        (pgbouncer.dir(), pgbouncer.address()),
    ]
    .map(|(dir, address)| (dir.to_owned(), address));
    for (dir, address) in &left {
        assert!(dir.join("log").exists(), "{}", dir.display());
        TcpStream::connect(address).expect("the port is open");
    }
    drop((redis, rabbit, pgbouncer, postgres));
    for (dir, address) in left {
        assert!(!dir.exists(), "{}", dir.display());
        TcpStream::connect(address).expect_err("the port is closed");
    }
}

#[test]
#[should_panic(expected = "no-such-directive")]
fn a_failed_start_of_redis_panics_with_the_reason() {
    Redis::options().set("no-such-directive", "1").start();
}

#[test]
#[should_panic(expected = "no_such_key")]
fn a_failed_start_of_rabbitmq_panics_with_the_reason() {
    RabbitMq::options().set("no_such_key", "1").start();
}

#[test]
#[should_panic(expected = "no_such_parameter")]
fn a_failed_start_of_postgres_panics_with_the_reason() {
    Postgres::options().set("no_such_parameter", "1").start();
}
