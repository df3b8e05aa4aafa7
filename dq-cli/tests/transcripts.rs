//! A store and a server must print the same.

mod support;

use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use support::{Server, run, text};

/// Replaces each time close to now with `now`.
fn without_now(text: &str) -> String {
    const TIME: &str = "2027-01-31T10:00:00.000Z";
    let now = dq_core::Timestamp::from(std::time::SystemTime::now());
    let is_now = |part: &str| {
        let time = dq_ops::parse_timestamp(part).ok();
        time.is_some_and(|time| time.since(now).max(now.since(time)) < Duration::from_secs(600))
    };
    let (mut rest, mut result) = (text, String::new());
    while let Some(next) = rest.chars().next() {
        match rest.get(..TIME.len()).filter(|part| part.ends_with('Z') && is_now(part)) {
            Some(part) => {
                result += "now";
                rest = &rest[part.len()..];
            }
            None => {
                result.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    result
}

fn same_output_on(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &["--url", url]);
    let direct = |args: &[&str]| run(path, &[args, &["--url", url]].concat());
    let api = |args: &[&str]| run(path, &server.api(args));
    let mut id = String::new();
    for number in 0..3 {
        let key = format!("order-{number}");
        let line = ["enqueue", "ORDER", r#"{"n":1.5}"#, "--key", &key, "--due", "400d", "--json"];
        let output = if number == 1 { direct(&line) } else { api(&line) };
        let stored: Value = serde_json::from_slice(&output.stdout).unwrap();
        id = stored["id"].as_str().unwrap().to_owned();
    }
    let same = |line: &[&str]| {
        let parts = |output: Output| {
            let [stdout, stderr] = [output.stdout, output.stderr].map(|part| text(&part));
            (without_now(&stdout), without_now(&stderr), output.status.code())
        };
        let both = || (parts(direct(line)), parts(api(line)));
        let mut printed = both();
        for _ in 0..2 {
            if printed.0 == printed.1 {
                break;
            }
            // An hour may have ended between the two, or the store was slow once.
            printed = both();
        }
        assert_eq!(printed.0, printed.1, "{url}: {line:?}");
    };
    for line in [
        &["queues"][..],
        &["queues", "--json"],
        &["queues", "NOPE"],
        &["jobs", "ls"],
        &["jobs", "ls", "ORDER", "--state", "scheduled", "--json", "--desc"],
        &["jobs", "ls", "--key-prefix", "order-1", "--contains", "1.5"],
        &["jobs", "find", "order-2"],
        &["jobs", "find", "order-", "--json", "--limit", "2"],
        &["jobs", "find", "nope"],
        &["watch", "--count", "1"],
        &["watch", "ORDER", "--count", "1", "--json"],
        &["jobs", "get", "ORDER", "key:order-0"],
        &["jobs", "get", "ORDER", &id, "--json"],
        &["jobs", "get", "ORDER", "key:nope"],
        &["jobs", "cancel", "ORDER", "--all"],
        &["jobs", "replay", "ORDER", &id],
        &["where", "ORDER", "key:order-0"],
        &["runners"],
        &["check"],
        &["enqueue", "ORDER", "1", "--key", "order-0"],
        &["enqueue", "ORDER", "not JSON"],
        &["purge", "ORDER", "--confirm", "order"],
    ] {
        same(line);
    }
    the_future_is_the_same(&direct, &api, &same);
    assert_eq!(text(&direct(&["pause", "ORDER"]).stdout), "paused ORDER\n");
    assert_eq!(text(&api(&["pause", "ORDER"]).stdout), "ORDER is paused already\n");
    assert_eq!(text(&api(&["resume", "ORDER"]).stdout), "resumed ORDER\n");
    let moved = direct(&["jobs", "move", "ORDER", "key:order-1", "--to", "2h", "--json"]);
    assert!(moved.status.success(), "{}", text(&moved.stderr));
    let cancelled = api(&["jobs", "cancel", "ORDER", "key:order-1"]);
    assert_eq!(text(&cancelled.stdout), "cancelled ORDER/key:order-1\n");
    assert_eq!(direct(&["jobs", "cancel", "ORDER", "key:order-1"]).status.code(), Some(3));
    let many = direct(&["jobs", "cancel", "ORDER", "--key-prefix", "order-", "--yes"]);
    assert_eq!(text(&many.stdout), "cancelled 2 jobs of ORDER\n");
    api(&["enqueue", "ORDER", "--due", "1d"]);
    let purged = direct(&["purge", "ORDER", "--confirm", "ORDER"]);
    assert_eq!(text(&purged.stdout), "deleted 1 job of ORDER\n", "{}", text(&purged.stderr));
}

fn the_future_is_the_same(
    direct: &dyn Fn(&[&str]) -> Output,
    api: &dyn Fn(&[&str]) -> Output,
    same: &dyn Fn(&[&str]),
) {
    let daily = ["--cron", "30 2 * * *", "--tz", "Europe/Stockholm"];
    let set = [&["cron", "set", "nightly", "REPORT", r#"{"region":"eu"}"#], &daily[..]].concat();
    let expect = |output: Output, stdout: &str| {
        assert_eq!(text(&output.stdout), stdout, "{}", text(&output.stderr));
    };
    expect(api(&set), "stored nightly\n");
    expect(direct(&set), "is stored already: nightly\n");
    let past = ["--after", "2024-01-01T00:00:00Z", "--until", "2024-01-04T00:00:00Z"];
    let backfill = |name| [&["cron", "backfill", name], &past[..]].concat();
    let later = ["simulate", "--start", "2030-01-01T00:00:00Z", "--window", "2h"];
    for line in [
        &["cron", "ls"][..],
        &["cron", "ls", "--json"],
        &["cron", "show", "nightly", "--next", "2"],
        &["cron", "show", "nope"],
        &["cron", "run", "nope"],
        &["cron", "set", "x", "Q", "--every", "soon"],
        &backfill("nope"),
        &["forecast"],
        &["forecast", "--json", "--window", "7d"],
        &["forecast", "REPORT"],
        &["forecast", "NOPE"],
        &later,
        &[&later[..], &["--concurrency", "1", "--run-time", "1s"]].concat(),
        &[&later[..], &["--concurrency", "1", "--run-time", "1s", "--json"]].concat(),
    ] {
        same(line);
    }
    expect(direct(&["cron", "pause", "nightly"]), "paused nightly\n");
    expect(api(&["cron", "pause", "nightly"]), "was paused before: nightly\n");
    expect(api(&["cron", "resume", "nightly"]), "resumed nightly\n");
    expect(direct(&["cron", "resume", "nightly"]), "is not paused: nightly\n");
    expect(direct(&["cron", "skip", "nightly"]), "skipped the next occurrence of nightly\n");
    expect(api(&backfill("nightly")), "scheduled 3 jobs of nightly\n");
    expect(direct(&["cron", "rm", "nightly"]), "removed nightly\n");
    assert_eq!(api(&["cron", "rm", "nightly"]).status.code(), Some(3));
}

#[test]
fn sqlite_prints_the_same_directly_and_through_the_api() {
    let directory = tempfile::tempdir().unwrap();
    same_output_on(&format!("sqlite://{}", directory.path().join("jobs.db").display()));
}

#[test]
fn redis_prints_the_same_directly_and_through_the_api() {
    let redis = dq_servers::Redis::options().aof().start();
    same_output_on(&format!("{}?response_timeout=60s", redis.url()));
}

#[test]
fn the_keys_of_redisson_print_the_same_directly_and_through_the_api() {
    let redis = dq_servers::Redis::options().aof().start();
    let url = redis.url().replacen("redis://", "redisson://", 1);
    same_output_on(&format!("{url}?response_timeout=60s"));
}

#[test]
fn redis_with_key_expiry_prints_the_same_directly_and_through_the_api() {
    let redis = dq_servers::Redis::options().aof().set("notify-keyspace-events", "Ex").start();
    let url = redis.url().replacen("redis://", "redis-expiry://", 1);
    same_output_on(&format!("{url}?response_timeout=60s"));
}

#[test]
fn rabbitmq_prints_the_same_directly_and_through_the_api() {
    let broker = dq_servers::RabbitMq::options().start();
    // On a busy machine, declaring a ladder takes longer than the default of 5 s.
    same_output_on(&format!("{}?response_timeout=60s", broker.url()));
}
