use crate::support::{Server, code, ok, run, text};

#[test]
fn jobs_of_a_sorted_set_are_counted_and_moved_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &[]);
    let redis = dq_servers::Redis::options().start();
    for (score, member) in
        [("4102444800000", "1"), ("4102444800001", "2"), ("4102444800", "3"), ("inf", "4")]
    {
        redis.command(&["ZADD", "timeouts", score, member]);
    }
    let line = ["import", "redis-zset", "--key", "timeouts", "--queue", "ORDER", "--from"];
    let url = redis.url();
    let import = |rest: &[&str]| {
        let output = run(path, &[&line[..], &[&url], rest].concat());
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let stay = "1 entry stays: scores such as 4e9 are before 1973 in milliseconds: are they in \
                seconds?\n1 entry stays: the score inf is not a time\n";
    let counted = "2 jobs of the sorted set \"timeouts\" can be imported into ORDER";
    let refused = format!(
        "{stay}error: {counted}; nothing was changed\nremedy: repeat the command with --yes\n"
    );
    assert_eq!(import(&[]), (2, String::new(), refused));
    assert_eq!(import(&["--dry-run"]), (0, format!("{counted}\n"), stay.to_owned()));
    assert_eq!(code(path, &["queues", "ORDER"]).0, 3, "nothing was changed");

    let imported = "imported 2 jobs of the sorted set \"timeouts\" into ORDER\n";
    assert_eq!(import(&["--yes"]), (1, imported.to_owned(), stay.to_owned()));
    assert_eq!(ok(path, &["jobs", "ls", "ORDER", "--json"]).lines().count(), 2);
    assert_eq!(redis.command(&["ZCARD", "timeouts"]).int(), 2);

    redis.command(&["ZREM", "timeouts", "4"]);
    let seconds = import(&["--yes", "--scores", "seconds", "--json"]);
    let json = r#"{"action":"import","dry_run":false,"imported":1,"queue":"ORDER","rejected":[],"#;
    let json = format!("{json}\"resumed\":0,\"source\":\"the sorted set \\\"timeouts\\\"\"}}\n");
    assert_eq!(seconds, (0, json, String::new()));
    let jobs = ok(path, &["jobs", "ls", "ORDER", "--json"]);
    assert_eq!(jobs.matches("\"due\":\"2100-01-01T00:00:00.00").count(), 3, "{jobs}");

    let (status, error) = code(path, &server.api(&[&line[..], &[&url]].concat()));
    assert_eq!(status, 2);
    assert!(error.contains("works on the store itself, not through a server"), "{error}");
    assert_eq!(code(path, &[&line[..], &["redis://127.0.0.1:1/0"]].concat()).0, 5);
    assert_eq!(code(path, &[&line[..], &[&url, "--yes", "--dry-run"]].concat()).0, 2);
}

#[test]
fn an_interrupted_import_goes_on_with_the_same_queue_and_store_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(Server::start(path, &[]));
    let redis = dq_servers::Redis::options().start();
    redis.command(&["ZADD", "timeouts", "4102444800000", "1"]);
    // A journal entry of an interrupted import: its stage, and the job.
    let interrupted = |stage: &[u8]| {
        let job = dq_core::import::ImportJob {
            queue: dq_core::QueueName::new("ORDER").unwrap(),
            payload: "2".into(),
            due: dq_core::Timestamp::from_millis(4_102_444_800_000),
        };
        let entry = [stage, &job.to_record()].concat();
        redis.command_bytes(&[b"HSET", b"dq_import:{timeouts}", &[7; 16], &entry]);
    };
    let url = redis.url();
    let import = |queue: &str, rest: &[&str]| {
        let line = ["import", "redis-zset", "--key", "timeouts", "--from", &url, "--queue", queue];
        let output = run(path, &[&line[..], rest].concat());
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    interrupted(b"T");
    let counted = "1 job of the sorted set \"timeouts\" can be imported into ORDER, and 1 of an \
                   interrupted import";
    let refused =
        format!("error: {counted}; nothing was changed\nremedy: repeat the command with --yes\n");
    assert_eq!(import("ORDER", &[]), (2, String::new(), refused));
    assert_eq!(import("ORDER", &["--dry-run"]), (0, format!("{counted}\n"), String::new()));
    let other = "error: an interrupted import of the sorted set \"timeouts\" was into the queue \
                 ORDER\nremedy: import into ORDER again first, in the same store, which finishes \
                 it\n";
    for arguments in [&[][..], &["--dry-run"], &["--yes"]] {
        let refused = (4, String::new(), other.to_owned());
        assert_eq!(import("OTHER", arguments), refused, "{arguments:?}");
    }

    // The interrupted import's store has the job, and this is another store.
    interrupted(b"S");
    let (code_of_store, stdout, error) = import("ORDER", &["--yes"]);
    assert_eq!((code_of_store, stdout), (2, String::new()), "{error}");
    assert!(error.contains("is not in this store"), "{error}");
    assert_eq!(code(path, &["queues", "ORDER"]).0, 3, "nothing was changed");

    interrupted(b"T");
    let imported = "imported 1 job of the sorted set \"timeouts\" into ORDER, and 1 of an \
                    interrupted import\n";
    assert_eq!(import("ORDER", &["--yes"]), (0, imported.to_owned(), String::new()));
    assert_eq!(ok(path, &["jobs", "ls", "ORDER", "--json"]).lines().count(), 2);
}

#[test]
fn jobs_of_redisson_are_counted_and_moved_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(Server::start(path, &[]));
    let redis = dq_servers::Redis::options().start();
    // As a Java client offers a job: the entry in both keys, packed by Redisson's script.
    let offer = "local member = struct.pack('Bc0Lc0', 8, ARGV[1], #ARGV[2], ARGV[2]) \
                 redis.call('ZADD', KEYS[1], '4102444800000', member) \
                 redis.call('RPUSH', KEYS[2], member)";
    let keys = ["redisson_delay_queue_timeout:{orders}", "redisson_delay_queue:{orders}"];
    for (id, payload) in [("00000001", "1"), ("00000002", "no JSON")] {
        let _ = redis.command(&["EVAL", offer, "2", keys[0], keys[1], id, payload]);
    }
    redis.command(&["RPUSH", "orders", "3"]);
    let url = redis.url();
    let import = |rest: &[&str]| {
        let line = ["import", "redisson", "--name", "orders", "--codec", "json", "--from", &url];
        let output = run(path, &[&line[..], rest].concat());
        (output.status.code().unwrap(), text(&output.stdout))
    };
    let counted = "2 jobs of the Redisson queue \"orders\" can be imported into orders\n";
    assert_eq!(import(&["--dry-run"]), (0, counted.to_owned()));
    let imported = "imported 2 jobs of the Redisson queue \"orders\" into ORDER\n";
    assert_eq!(import(&["--queue", "ORDER", "--yes"]), (1, imported.to_owned()));
    let nothing = "imported 0 jobs of the Redisson queue \"orders\" into ORDER\n";
    assert_eq!(import(&["--queue", "ORDER", "--yes"]), (1, nothing.to_owned()));
    let jobs = ok(path, &["jobs", "ls", "ORDER", "--json"]);
    assert_eq!(jobs.lines().count(), 2, "{jobs}");
    let line = ["import", "redisson", "--name", "orders", "--from", &url];
    for (codec, words) in [(&[][..], "--codec"), (&["--codec", "java"], "java")] {
        let (status, error) = code(path, &[&line[..], codec].concat());
        assert!(status == 2 && error.contains(words), "{status}: {error}");
    }

    // The store is the source, which is refused unless the queue differs.
    let same = url.replacen("redis://", "redisson://", 1);
    assert_eq!(import(&["--yes", "--url", &same]), (2, String::new()));
    let moved = import(&["--yes", "--url", &same, "--queue", "ELSEWHERE"]);
    assert_eq!(moved.1, "imported 0 jobs of the Redisson queue \"orders\" into ELSEWHERE\n");
}
