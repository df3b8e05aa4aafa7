//! PostgreSQL and pgbouncer: crashes, standbys, certificates.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use dq_servers::{PgBouncer, Postgres, shared_postgres};

#[test]
fn a_killed_server_keeps_a_committed_row_and_leaves_no_process() {
    let postgres = Postgres::start();
    postgres.execute("CREATE TABLE jobs AS SELECT 7 AS id");
    let computation = "SELECT count(*) FROM generate_series(1, 1e12)";
    thread::scope(|scope| {
        // A computation does not notice that the server's first process has died.
        let busy = scope.spawn(|| postgres.try_execute(computation));
        wait_until(|| is_running(&postgres, computation));
        let processes = postgres.execute("SELECT pid FROM pg_stat_activity");
        postgres.kill();
        for id in processes.lines() {
            // An exited process may remain until the container's first process waits for it.
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            assert!(stat.is_empty() || stat.contains(") Z "), "it still runs: {stat}");
        }
        busy.join().expect("a result").expect_err("the server was killed");
    });
    postgres.restart();
    assert_eq!(postgres.execute("SELECT id FROM jobs"), "7");
    postgres.stop();
    postgres.restart();
    assert_eq!(postgres.execute("SELECT id FROM jobs"), "7");
}

#[test]
fn a_frozen_server_suspends_its_queries() {
    let postgres = Postgres::start();
    // A slow machine may freeze the server too late for a short query.
    let frozen = [1, 10, 60].into_iter().any(|seconds| {
        let pause = Duration::from_secs(seconds);
        let sql = format!("SELECT pg_sleep({seconds})");
        let begin = Instant::now();
        thread::scope(|scope| {
            let query = scope.spawn(|| postgres.execute(&sql));
            wait_until(|| query.is_finished() || is_running(&postgres, &sql));
            postgres.freeze();
            let in_time = begin.elapsed() < pause;
            if in_time {
                thread::sleep(pause);
                assert!(!query.is_finished(), "the query has ended on a frozen server");
            }
            postgres.thaw();
            query.join().expect("the query ends");
            in_time
        })
    });
    assert!(frozen, "no query was running when the server was frozen");
}

#[test]
fn a_standby_receives_rows_and_can_be_promoted() {
    let primary = Postgres::options().set("max_connections", "30").start();
    let standby = Postgres::options().standby_of(&primary).start();
    primary.execute("CREATE TABLE jobs AS SELECT 7 AS id");
    wait_until(|| standby.try_execute("SELECT id FROM jobs").as_deref() == Ok("7"));
    let error = standby.try_execute("INSERT INTO jobs VALUES (8)").expect_err("read-only");
    assert!(error.contains("read-only transaction"), "{error}");
    primary.kill();
    standby.promote();
    standby.execute("INSERT INTO jobs VALUES (8)");
    standby.kill();
    standby.restart();
    assert_eq!(standby.execute("SELECT count(*) FROM jobs"), "2");
}

#[test]
fn databases_are_separate_also_through_pgbouncer() {
    let postgres = shared_postgres();
    let pgbouncer = PgBouncer::start(postgres);
    let urls = [postgres.create_database(), postgres.create_database()];
    for url in &urls {
        postgres.psql(url, "CREATE TABLE jobs AS SELECT current_database()").expect("a new table");
        let name = postgres.psql(&pgbouncer.url_to(url), "SELECT * FROM jobs").expect("the row");
        assert!(url.ends_with(&format!("/{name}")), "{name} at {url}");
    }
    pgbouncer.kill();
    postgres.psql(&pgbouncer.url(), "SELECT 1").expect_err("pgbouncer was killed");
    pgbouncer.restart();
    pgbouncer.stop();
    pgbouncer.restart();
    assert_eq!(postgres.psql(&pgbouncer.url(), "SELECT 1").as_deref(), Ok("1"));
}

#[test]
fn only_a_client_with_a_certificate_is_accepted() {
    let primary = Postgres::options().require_client_certificate().start();
    let standby = Postgres::options().standby_of(&primary).start();
    // libpq requires that the user owns the key.
    let key = primary.dir().join("key");
    fs::copy(primary.client_key(), &key).expect("a copy");
    for postgres in [&primary, &standby] {
        let (url, ca) = (postgres.url(), postgres.ca());
        let error = postgres.psql(&format!("{url}?sslmode=disable"), "SELECT 1");
        assert!(error.as_ref().is_err_and(|error| error.contains("no encryption")), "{error:?}");
        let url = format!("{url}?sslmode=verify-full&sslrootcert={}", ca.display());
        let error = postgres.psql(&url, "SELECT 1");
        assert!(error.as_ref().is_err_and(|error| error.contains("certificate")), "{error:?}");
        let certificate = postgres.client_certificate();
        let url = format!("{url}&sslcert={}&sslkey={}", certificate.display(), key.display());
        assert_eq!(postgres.psql(&url, "SELECT 1").as_deref(), Ok("1"));
    }
}

fn is_running(postgres: &Postgres, query: &str) -> bool {
    let running = format!("SELECT count(*) FROM pg_stat_activity WHERE query = '{query}'");
    postgres.execute(&running) == "1"
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "the condition does not become true");
        thread::sleep(Duration::from_millis(10));
    }
}
