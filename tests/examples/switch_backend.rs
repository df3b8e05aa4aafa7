//! `switch_backend`: killed and started with the next store, it runs what is pending in the one
//! before, and puts what is new into the new one.

use std::path::Path;
use std::time::{Duration, Instant};

use dq::backend::QueueStats;
use dq::{Dq, JobState, Rescheduled};
use dq_servers::{Redis, shared_rabbitmq};

use crate::program::{PATIENCE, Program, output};

const NAME: &str = "switch_backend";

/// The files of the example, with the addresses of this Redis and this RabbitMQ.
fn configure(dir: &Path, redis: &Redis, rabbit: &str) {
    for (file, text) in [
        ("sqlite.toml", include_str!("../../examples/switch_backend/sqlite.toml")),
        ("redis.toml", include_str!("../../examples/switch_backend/redis.toml")),
        ("redisson.toml", include_str!("../../examples/switch_backend/redisson.toml")),
        ("rabbitmq.toml", include_str!("../../examples/switch_backend/rabbitmq.toml")),
    ] {
        let text = text.replace("redis://127.0.0.1:6379/0", &redis.url());
        let text = text.replace("amqp://127.0.0.1:5672", rabbit);
        std::fs::write(dir.join(file), text).unwrap();
    }
}

fn start(dir: &Path, config: &str, seconds: &str) -> Program {
    Program::start(NAME, dir, &["--config", config, "--in", seconds])
}

fn said(program: &Program, line: &str) {
    assert_eq!(program.line().as_deref(), Some(line));
}

/// What the reminders of these files print, sorted as they run side by side.
fn rounds_of(configs: &[&str]) -> Vec<String> {
    let round = |config| (1..=3).map(move |number| format!("  reminder {number} of {config}"));
    let mut lines: Vec<String> = configs.iter().flat_map(round).collect();
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

/// How many jobs ever came to a store.
fn created_in(url: &str) -> u64 {
    stats(url).totals.expect("this store counts").created
}

/// Waits until the last job of a store is settled, so that a kill makes none run twice.
fn wait_until_empty(url: &str) {
    let start = Instant::now();
    while stats(url).live() > 0 {
        assert!(start.elapsed() < PATIENCE, "not drained: {:?}", stats(url));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Makes all that waits in a store due in some seconds.
#[tokio::main(flavor = "current_thread")]
async fn move_up(url: &str) {
    let dq = Dq::connect(url).await.unwrap();
    let queue = dq.queue("REMINDER").unwrap();
    for view in queue.browse(JobState::Scheduled, None, 100).await.unwrap().jobs {
        let moved = queue.reschedule(view.job.id, Duration::from_secs(5)).await.unwrap();
        assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
    }
    dq.close().await.unwrap();
}

#[test]
fn from_store_to_store_nothing_is_lost_and_nothing_doubled() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rabbit_url = shared_rabbitmq().vhost("switch");
    configure(dir, &redis, &rabbit_url);
    let sqlite_url = format!("sqlite://{}/switch_backend.db", dir.display());
    let (redis_url, redisson_url) = (redis.url(), redis.url().replace("redis:", "redisson:"));

    let mut first = start(dir, "sqlite.toml", "600");
    said(&first, "0 pending from before");
    said(&first, "3 more scheduled, due in 600s");
    first.kill();
    assert!(first.rest().is_empty());
    move_up(&sqlite_url);

    // What SQLite holds runs, what is new waits in Redis.
    let mut second = start(dir, "redis.toml", "600");
    said(&second, "3 pending from before");
    said(&second, "3 more scheduled, due in 600s");
    let mut ran: Vec<String> = (0..3).map(|_| second.line().unwrap()).collect();
    ran.sort();
    assert_eq!(ran, rounds_of(&["sqlite.toml"]));
    wait_until_empty(&sqlite_url);
    assert_eq!((created_in(&sqlite_url), created_in(&redis_url)), (3, 3));
    second.kill();
    assert!(second.rest().is_empty());
    assert_eq!(stats(&redis_url).live(), 3);
    move_up(&redis_url);

    // And so on, from Redis to Redisson.
    let mut third = start(dir, "redisson.toml", "600");
    said(&third, "3 pending from before");
    said(&third, "3 more scheduled, due in 600s");
    let mut ran: Vec<String> = (0..3).map(|_| third.line().unwrap()).collect();
    ran.sort();
    assert_eq!(ran, rounds_of(&["redis.toml"]));
    wait_until_empty(&redis_url);
    third.kill();
    assert!(third.rest().is_empty());
    assert_eq!(stats(&redisson_url).live(), 3);
    move_up(&redisson_url);

    // And from Redisson to RabbitMQ.
    let mut fourth = start(dir, "rabbitmq.toml", "1");
    said(&fourth, "3 pending from before");
    said(&fourth, "3 more scheduled, due in 1s");
    let mut ran = fourth.rest();
    assert!(fourth.wait().success());
    assert_eq!(ran.pop().as_deref(), Some("0 left for the next start"));
    ran.sort();
    assert_eq!(ran, rounds_of(&["redisson.toml", "rabbitmq.toml"]));
    assert_eq!((created_in(&sqlite_url), created_in(&redis_url)), (3, 3));
    assert_eq!(created_in(&rabbit_url), 3);
    for url in [&sqlite_url, &redis_url, &redisson_url, &rabbit_url] {
        assert_eq!(stats(url).stored(), 0, "{url}");
    }
}

#[test]
fn killed_long_before_anything_is_due_the_last_store_has_them_all_run() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    configure(dir, &redis, &shared_rabbitmq().vhost("killed_long_before"));
    let files = ["sqlite.toml", "redis.toml", "redisson.toml"];
    for (file, pending) in files.into_iter().zip([0, 3, 6]) {
        let mut killed = start(dir, file, "600");
        said(&killed, &format!("{pending} pending from before"));
        said(&killed, "3 more scheduled, due in 600s");
        killed.kill();
        assert!(killed.rest().is_empty());
    }
    let sqlite_url = format!("sqlite://{}/switch_backend.db", dir.display());
    for url in [sqlite_url, redis.url(), redis.url().replace("redis:", "redisson:")] {
        move_up(&url);
    }
    let last = start(dir, "rabbitmq.toml", "0");
    said(&last, "9 pending from before");
    said(&last, "3 more scheduled, due in 0ns");
    let mut ran = last.rest();
    assert_eq!(ran.pop().as_deref(), Some("0 left for the next start"));
    ran.sort();
    assert_eq!(ran, rounds_of(&[&files[..], &["rabbitmq.toml"]].concat()));
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_the_rest_for_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), &Redis::start(), "amqp://127.0.0.1:1");
    let mut program = start(dir.path(), "sqlite.toml", "3600");
    said(&program, "0 pending from before");
    said(&program, "3 more scheduled, due in 3600s");
    program.signal("INT");
    assert_eq!(program.rest(), ["3 left for the next start"]);
    assert!(program.wait().success());
}

#[test]
fn nonsense_is_answered_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("odd.toml"), "[backend]\ntype = \"mongodb\"\n").unwrap();
    for (arguments, code, word) in [
        (&[][..], 2, "--config"),
        (&["--config", "no.toml"], 2, "no.toml"),
        (&["--config", "odd.toml"], 2, "mongodb"),
        (&["--config", "odd.toml", "--in", "-1"], 2, "0 to 3600"),
        (&["--config", "odd.toml", "--in", "soon"], 2, "soon"),
        (&["--backend", "redis"], 2, "--backend"),
    ] {
        let output = output(NAME, dir.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(
            said.starts_with("switch_backend: ") && said.contains(word),
            "{arguments:?}: {said}"
        );
    }
}
