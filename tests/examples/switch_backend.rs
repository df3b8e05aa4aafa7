//! `switch_backend`: after a kill and a start with the next store, the previous store's jobs run
//! and new jobs go to the new store.

use std::path::Path;
use std::time::{Duration, Instant};

use dq::backend::QueueStats;
use dq::{Dq, JobState, Rescheduled};
use dq_servers::{Redis, shared_postgres, shared_rabbitmq};

use crate::program::{MAX_WAIT, Program};

const NAME: &str = "switch_backend";

fn configure(dir: &Path, redis: &Redis, rabbit: &str) {
    for (file, text) in [
        ("sqlite.toml", include_str!("../../examples/switch_backend/sqlite.toml")),
        ("redis.toml", include_str!("../../examples/switch_backend/redis.toml")),
        ("redisson.toml", include_str!("../../examples/switch_backend/redisson.toml")),
        ("rabbitmq.toml", include_str!("../../examples/switch_backend/rabbitmq.toml")),
    ] {
        // Longer than any call takes on a busy machine.
        let address = format!("url = \"{}\"\nresponse_timeout = \"60s\"", redis.url());
        let text = text.replace("url = \"redis://127.0.0.1:6379/0\"", &address);
        let rabbit = format!("url = \"{rabbit}\"\nresponse_timeout = \"60s\"");
        let text = text.replace("url = \"amqp://127.0.0.1:5672\"", &rabbit);
        std::fs::write(dir.join(file), text).unwrap();
    }
}

/// Starts with a file. Jobs of the drained stores must be pending.
fn start(dir: &Path, config: &str, seconds: &str, pending: usize) -> Program {
    let program = Program::start(NAME, dir, &["--config", config, "--in", seconds]);
    let expected =
        [format!("{pending} pending from before"), format!("3 more scheduled, due in {seconds} s")];
    for line in expected {
        assert_eq!(program.line(), Some(line));
    }
    program
}

fn kill(mut program: Program) {
    program.kill();
    assert!(program.rest().is_empty());
}

/// The reminders scheduled with these files. Sorted, because reminders run concurrently.
fn reminders_of(configs: &[&str]) -> Vec<String> {
    let of_file = |config| (1..=3).map(move |number| format!("  reminder {number} of {config}"));
    let mut lines: Vec<String> = configs.iter().flat_map(of_file).collect();
    lines.sort();
    lines
}

#[tokio::main(flavor = "current_thread")]
async fn stats(url: &str) -> QueueStats {
    let dq = Dq::connect(url).await.unwrap();
    let stats = dq.queue("REMINDER").unwrap().stats().await.unwrap();
    dq.close().await.unwrap();
    stats
}

fn created_in(url: &str) -> u64 {
    stats(url).totals.expect("this store has totals").created
}

fn wait_until_drained(url: &str) {
    let start = Instant::now();
    while stats(url).live() > 0 {
        assert!(start.elapsed() < MAX_WAIT, "not drained: {:?}", stats(url));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn make_due_soon(url: &str) {
    let dq = Dq::connect(url).await.unwrap();
    let queue = dq.queue("REMINDER").unwrap();
    for view in queue.browse(JobState::Scheduled).await.unwrap().jobs {
        let moved = queue.reschedule(view.job.id, Duration::from_secs(5)).await.unwrap();
        assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
    }
    dq.close().await.unwrap();
}

#[test]
fn no_job_is_lost_or_doubled_from_store_to_store() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rabbit_url = shared_rabbitmq().vhost("switch");
    configure(dir, &redis, &rabbit_url);
    let rabbit_url = format!("{rabbit_url}?response_timeout=60s");
    let sqlite_url = format!("sqlite://{}/switch_backend.db", dir.display());
    let (redis_url, redisson_url) = (redis.url(), redis.url().replace("redis:", "redisson:"));

    kill(start(dir, "sqlite.toml", "600", 0));
    make_due_soon(&sqlite_url);
    for (previous, drained, file, url) in [
        ("sqlite.toml", &sqlite_url, "redis.toml", &redis_url),
        ("redis.toml", &redis_url, "redisson.toml", &redisson_url),
    ] {
        let program = start(dir, file, "600", 3);
        let mut ran: Vec<String> = (0..3).map(|_| program.line().unwrap()).collect();
        ran.sort();
        assert_eq!(ran, reminders_of(&[previous]));
        wait_until_drained(drained);
        kill(program);
        assert_eq!(stats(url).live(), 3);
        make_due_soon(url);
    }

    let mut fourth = start(dir, "rabbitmq.toml", "1", 3);
    let mut ran = fourth.rest();
    assert!(fourth.wait().success());
    assert_eq!(ran.pop().as_deref(), Some("0 left for the next start"));
    ran.sort();
    assert_eq!(ran, reminders_of(&["redisson.toml", "rabbitmq.toml"]));
    assert_eq!((created_in(&sqlite_url), created_in(&redis_url)), (3, 3));
    assert_eq!(created_in(&rabbit_url), 3);
    for url in [&sqlite_url, &redis_url, &redisson_url, &rabbit_url] {
        assert_eq!(stats(url).stored(), 0, "no job is left in {url}, not even a dead one");
    }
}

#[test]
fn no_job_is_lost_or_doubled_from_sqlite_to_postgres() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let postgres_url = shared_postgres().create_database();
    let text = include_str!("../../examples/switch_backend/postgres.toml");
    let example = "url = \"postgres://postgres@127.0.0.1:5432/postgres\"";
    let address = format!("url = \"{postgres_url}\"\nresponse_timeout = \"60s\"");
    std::fs::write(dir.join("postgres.toml"), text.replace(example, &address)).unwrap();
    let sqlite = include_str!("../../examples/switch_backend/sqlite.toml");
    std::fs::write(dir.join("sqlite.toml"), sqlite).unwrap();
    let sqlite_url = format!("sqlite://{}/switch_backend.db", dir.display());

    kill(start(dir, "sqlite.toml", "600", 0));
    make_due_soon(&sqlite_url);
    let mut second = start(dir, "postgres.toml", "1", 3);
    let mut ran = second.rest();
    assert!(second.wait().success());
    assert_eq!(ran.pop().as_deref(), Some("0 left for the next start"));
    ran.sort();
    assert_eq!(ran, reminders_of(&["sqlite.toml", "postgres.toml"]));
    for url in [&sqlite_url, &postgres_url] {
        assert_eq!((created_in(url), stats(url).stored()), (3, 0), "{url}");
    }
}

#[test]
fn ctrl_c_leaves_pending_jobs_for_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    // Only sqlite.toml is used; the addresses in the other files do not matter.
    configure(dir.path(), &Redis::start(), "amqp://127.0.0.1:1");
    let mut program = start(dir.path(), "sqlite.toml", "3600", 0);
    program.signal("INT");
    assert_eq!(program.rest(), ["3 left for the next start"]);
    assert!(program.wait().success());
}
