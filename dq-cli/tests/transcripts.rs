//! The program opens each store, and prints the same directly and through a server.

use std::process::Output;

use crate::support::{Server, run, text};

fn same_output_on(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &["--url", url]);
    let direct = |args: &[&str]| run(path, &[args, &["--url", url]].concat());
    let api = |args: &[&str]| run(path, &server.api(args));
    let expect = |output: Output, stdout: &str| {
        assert_eq!(text(&output.stdout), stdout, "{url}: {}", text(&output.stderr));
    };
    for number in 0..3 {
        let line = ["enqueue", "ORDER", "1.5", "--key", &format!("order-{number}"), "--due", "9d"];
        let output = if number == 1 { direct(&line) } else { api(&line) };
        assert!(output.status.success(), "{url}: {output:?}");
    }
    for line in [
        &["queues", "NOPE"][..],
        &["jobs", "ls"],
        &["jobs", "ls", "ORDER", "--json", "--desc", "--contains", "1.5"],
        &["jobs", "find", "nope"],
        &["jobs", "get", "ORDER", "key:order-0"],
        &["jobs", "cancel", "ORDER", "--all"],
        &["enqueue", "ORDER", "not JSON"],
        &["schedules", "show", "nope"],
        &["purge", "ORDER", "--confirm", "order"],
    ] {
        let parts = |output: Output| (text(&output.stdout), text(&output.stderr), output.status);
        assert_eq!(parts(direct(line)), parts(api(line)), "{url}: {line:?}");
    }
    expect(direct(&["pause", "ORDER"]), "paused ORDER\n");
    expect(api(&["pause", "ORDER"]), "ORDER is paused already\n");
    expect(api(&["resume", "ORDER"]), "resumed ORDER\n");
    let set = ["schedules", "set", "nightly", "REPORT", "--cron", "30 2 * * *"];
    expect(api(&set), "stored nightly\n");
    expect(direct(&set), "is stored already: nightly\n");
    expect(direct(&["schedules", "rm", "nightly"]), "removed nightly\n");
}

#[test]
fn sqlite() {
    let directory = tempfile::tempdir().unwrap();
    same_output_on(&format!("sqlite://{}", directory.path().join("jobs.db").display()));
}

#[test]
fn the_kinds_of_redis() {
    let redis = dq_servers::Redis::options().aof().set("notify-keyspace-events", "Ex").start();
    for (number, scheme) in ["redis", "redisson", "redis-expiry"].into_iter().enumerate() {
        let url = redis.url().replacen("redis://", &format!("{scheme}://"), 1);
        let url = url.trim_end_matches("/0");
        same_output_on(&format!("{url}/{number}?response_timeout=60s"));
    }
}

#[test]
fn rabbitmq() {
    let broker = dq_servers::RabbitMq::options().start();
    // On a busy machine, declaring a ladder takes longer than the default of 5 s.
    same_output_on(&format!("{}?response_timeout=60s", broker.url()));
}
