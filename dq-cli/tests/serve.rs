use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::support::{Server, code, dq, ok, run, text};
use serde_json::Value;

#[test]
fn a_server_on_a_fresh_directory_keeps_its_jobs_when_it_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &[]);
    assert!(server.address.starts_with("http://127.0.0.1:"), "{}", server.address);
    let line = ["enqueue", "MAIL", r#"{"to":"ann"}"#, "--key", "k", "--due", "1d"];
    ok(path, &server.api(&line));
    let before = ok(path, &server.api(&["jobs", "get", "MAIL", "key:k"]));
    let old = server.token.clone().unwrap();
    drop(server);

    let (status, error) = code(path, &["queues", "--api", "http://127.0.0.1:1", "--token", &old]);
    assert_eq!(status, 5, "{error}");
    let server = Server::start(path, &[]);
    assert_ne!(server.token.as_deref(), Some(old.as_str()));
    assert_eq!(ok(path, &server.api(&["jobs", "get", "MAIL", "key:k"])), before);
    assert_eq!(ok(path, &["jobs", "get", "MAIL", "key:k"]), before);
    let (status, error) = code(path, &["queues", "--api", &server.address, "--token", &old]);
    assert_eq!(status, 1, "{error}");
    assert!(error.contains("does not take this token\nremedy: look at DQ_TOKEN"), "{error}");
    let (status, error) = code(path, &["queues", "--api", &server.address]);
    assert_eq!(status, 1, "{error}");
    assert!(error.contains("asks for a token\nremedy: give the one that `dq serve`"), "{error}");
    // History is on by default, because people who inspect the store want to see ended jobs.
    ok(path, &server.api(&["jobs", "cancel", "MAIL", "key:k"]));
    let ended = ok(path, &server.api(&["jobs", "ls", "MAIL", "--state", "ended"]));
    assert!(ended.contains("cancelled"), "{ended}");
}

#[test]
fn variables_set_the_server_whatever_names_its_store() {
    let directory = tempfile::tempdir().unwrap();
    for args in [&["serve"][..], &["serve", "--url", "sqlite://jobs.db"]] {
        let mut server = dq(directory.path());
        let output = server.args(args).env("DQ_SERVE__ADDRESS", "nowhere:x").output().unwrap();
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains("nowhere:x"), "{args:?}: {error}");
    }
}

#[test]
fn a_right_token_under_another_host_name_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &["--demo"]);
    let address = server.address.trim_start_matches("http://").trim_end_matches('/');
    let answer = |host: &str, token: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "GET /v1/queues HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let token = server.token.as_deref().unwrap();
    let refused = answer("dq.example:7373", token);
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    assert!(refused.contains("dq.example:7373") && refused.contains("[serve.tokens]"), "{refused}");
    let wrong = answer("dq.example:7373", "0123456789abcdef");
    assert!(wrong.starts_with("HTTP/1.1 401 ") && !wrong.contains("dq.example"), "{wrong}");
    assert!(answer(address, token).starts_with("HTTP/1.1 200 "));
}

#[cfg(unix)]
#[test]
fn a_server_ends_in_order_at_both_signals() {
    for args in [&[][..], &["--demo"]] {
        for name in ["INT", "TERM"] {
            let directory = tempfile::tempdir().unwrap();
            let server = Server::start(directory.path(), args);
            let status = server.signal(name);
            assert_eq!(status.code(), Some(0), "{args:?} {name}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_server_takes_messages_of_other_systems() {
    let redis = dq_servers::Redis::options().aof().start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = format!(
        "[backend]\ntype = \"sqlite\"\npath = \"jobs.db\"\n[[ingress]]\ntype = \"redis-list\"\n\
         url = \"{}\"\nfrom = \"orders\"\nqueue = \"ORDER\"\nkey = \"/order\"\ndelay = \"/delay\"",
        redis.url()
    );
    std::fs::write(path.join("dq.toml"), config).unwrap();
    let server = Server::start(path, &[]);
    redis.command(&["LPUSH", "orders", r#"{"order":17,"delay":86400000}"#]).int();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !run(path, &server.api(&["jobs", "get", "ORDER", "key:17"])).status.success() {
        assert!(Instant::now() < deadline, "the message became no job within two minutes");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = server.signal("TERM");
    assert_eq!(status.code(), Some(0), "the server ends in order");
    assert_eq!(redis.command(&["EXISTS", "orders", "orders.taking"]).int(), 0);
}

#[cfg(unix)]
#[test]
fn a_server_forwards_due_jobs_and_runs_the_schedules_of_its_configuration() {
    let (webhook, requests) = webhook();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = format!(
        "[backend]\ntype = \"sqlite\"\npath = \"jobs.db\"\n\
         [queues.BILLING.forward]\ntype = \"http\"\nurl = \"{webhook}\"\nallow = [\"127.0.0.1/32\"]\n\
         [schedules.tick]\nqueue = \"BILLING\"\nevery = \"1s\"\npayload = \"tick\""
    );
    std::fs::write(path.join("dq.toml"), config).unwrap();
    let server = Server::start(path, &[]);
    let line = ["enqueue", "BILLING", r#"{"order":17}"#, "--key", "17", "--json"];
    let scheduled = ok(path, &server.api(&line));
    let scheduled: Value = serde_json::from_str(&scheduled).unwrap();
    let id = scheduled["id"].as_str().unwrap();
    let (mut has_order, mut ticks) = (false, 0);
    while !has_order || ticks < 2 {
        let (head, body) = requests.recv_timeout(Duration::from_secs(120)).unwrap();
        match body.as_str() {
            r#"{"order":17}"# => {
                assert!(head.contains(&format!("webhook-id: {id}")), "{head}");
                assert!(!has_order, "sent twice");
                has_order = true;
            }
            "\"tick\"" => ticks += 1,
            other => panic!("a request with {other:?}"),
        }
    }
    wait_until("the job has ended", || {
        let job = ok(path, &server.api(&["jobs", "get", "BILLING", id, "--json"]));
        serde_json::from_str::<Value>(&job).unwrap()["state"] == "ended"
    });
    for name in ["key:17", id] {
        let shown = ok(path, &server.api(&["where", "BILLING", name]));
        assert!(shown.starts_with("BILLING/17   done"), "{shown}");
    }
    // Store gauges, and runner metrics of the forwards.
    for metric in [
        "dq_queue_jobs{queue=\"BILLING\",state=\"dead\"} 0",
        "dq_jobs_total{queue=\"BILLING\",outcome=\"done\"}",
        "dq_lateness_seconds_bucket{queue=\"BILLING\",le=\"0.001\"}",
    ] {
        wait_until(metric, || server.get("metrics").contains(metric));
    }
    let mut promtool = dq_servers::promtool();
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut promtool = promtool.stderr(Stdio::piped()).spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(server.get("metrics").as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let status = server.signal("TERM");
    assert_eq!(status.code(), Some(0), "the server ends in order");
}

#[cfg(unix)]
#[test]
fn a_server_does_not_wait_for_an_answer_after_a_second_signal() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = format!(
        "[backend]\ntype = \"sqlite\"\npath = \"jobs.db\"\n[runner]\ngrace = \"1h\"\n\
         [queues.BILLING.forward]\ntype = \"http\"\nurl = \"http://{}/\"\ntimeout = \"1h\"\n\
         allow = [\"127.0.0.1/32\"]",
        silent.local_addr().unwrap()
    );
    std::fs::write(path.join("dq.toml"), config).unwrap();
    let mut server = Server::start(path, &[]);
    ok(path, &server.api(&["enqueue", "BILLING", "1"]));
    let _request = silent.accept().unwrap();
    let deadline = Instant::now() + Duration::from_secs(180);
    server.send_signal("TERM");
    while server.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the server waits for an answer");
        std::thread::sleep(Duration::from_millis(200));
        server.send_signal("TERM");
    }
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn forwards_may_be_left_to_other_programs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = "[backend]\ntype = \"sqlite\"\npath = \"jobs.db\"\n\
                  [queues.BILLING.forward]\ntype = \"pigeon\"\n";
    std::fs::write(path.join("dq.toml"), config).unwrap();
    let (status, error) = code(path, &["serve", "--address", "127.0.0.1:0"]);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("\"pigeon\"") && error.contains("forward = false"), "{error}");
    std::fs::write(path.join("dq.toml"), format!("{config}[serve]\nforward = false\n")).unwrap();
    let server = Server::start(path, &[]);
    ok(path, &server.api(&["enqueue", "BILLING", "1"]));
    assert!(ok(path, &server.api(&["queues", "BILLING", "--json"])).contains("\"ready\":1"));
}

/// A webhook receiver: its address, and each request's head and body.
fn webhook() -> (String, Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/due", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap_or(0) > 0 {}
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let Some(length) = length else { continue };
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap();
            if sender.send((head, text(&body))).is_err() {
                return;
            }
        }
    });
    (address, requests)
}

#[test]
fn a_demo_fills_every_page_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &["--demo"]);
    let lines = |args: &[&str]| {
        let output = ok(path, &server.api(&[args, &["--json"]].concat()));
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let sum = |field: &str| {
        lines(&["queues"]).iter().filter_map(|queue| queue[field].as_u64()).sum::<u64>()
    };
    // Queues without jobs appear once the runners announce themselves.
    wait_until("eight queues of the demo", || {
        let is_own = |queue: &&Value| !queue["queue"].as_str().unwrap().starts_with("dq.");
        lines(&["queues"]).iter().filter(is_own).count() == 8
    });
    let queues = lines(&["queues"]);
    assert!(queues.iter().any(|queue| queue["paused"] == true));
    assert!(queues.iter().any(|queue| queue["runners"] == 0));
    wait_until("two runners", || lines(&["runners"]).len() == 2);
    let schedules = lines(&["schedules", "ls"]);
    assert_eq!(schedules.len(), 5, "{schedules:?}");
    assert!(schedules.iter().any(|schedule| schedule["paused"] == true));
    assert!(lines(&["forecast"]).len() >= 4);
    let audit: Vec<Value> = serde_json::from_str(&server.get("v1/audit")).unwrap();
    let results: Vec<_> = audit.iter().map(|entry| &entry["outcome"]["result"]).collect();
    assert!(results.iter().filter(|result| **result == "ok").count() >= 4, "{audit:?}");
    assert_eq!(results.iter().filter(|result| **result == "failed").count(), 2, "{audit:?}");
    // Claiming takes seconds on a slow machine.
    wait_until("dead jobs with several errors", || {
        let dead = lines(&["jobs", "ls", "ORDER_TIMEOUT", "--state", "dead"]);
        let errors = dead.iter().map(|job| job["dead"]["message"].to_string());
        errors.collect::<std::collections::BTreeSet<_>>().len() > 2
    });
    wait_until("a job that is retried", || {
        let failed = lines(&["jobs", "ls", "--state", "scheduled", "--error", "refused"]);
        failed.iter().any(|job| job["attempts"] == 1)
    });
    wait_until("a history", || !lines(&["jobs", "ls", "--state", "ended"]).is_empty());
    wait_until("running jobs", || sum("running") > 0);
    assert!(sum("scheduled") > 100 && sum("ready") > 50);
    let created = sum("created_total");
    wait_until("new jobs", || sum("created_total") > created);
    drop(server);
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
}

#[track_caller]
fn wait_until(what: &str, is_there: impl Fn() -> bool) {
    for _ in 0..1_800 {
        if is_there() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what}: not within three minutes");
}

#[test]
fn a_server_that_others_can_reach_needs_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (status, error) = code(path, &["serve", "--address", "0.0.0.0:0"]);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("no token is configured"), "{error}");

    let toml = r#"
        [backend]
        type = "sqlite"
        path = "shop.db"
        [serve]
        address = "0.0.0.0:0"
        [serve.tokens.grafana]
        role = "viewer"
        token = "${file:token.txt}"
    "#;
    std::fs::write(path.join("dq.toml"), toml).unwrap();
    std::fs::write(path.join("token.txt"), "a secret of sixteen\n").unwrap();
    let mut server = Server::start_as_configured(path, &[]);
    assert_eq!(server.token, None, "a configured token is not printed");
    let port = server.address.trim_end_matches('/').rsplit(':').next().unwrap();
    server.address = format!("http://127.0.0.1:{port}");
    server.token = Some("a secret of sixteen".to_owned());
    assert!(path.join("shop.db").is_file() && !path.join("dq.db").exists());
    ok(path, &server.api(&["queues"]));
    let (status, error) = code(path, &server.api(&["enqueue", "MAIL"]));
    assert_eq!(status, 1);
    assert!(error.contains("this needs the role operator, and yours is viewer"), "{error}");
    // A search omits payloads, which a viewer may not see.
    ok(path, &["enqueue", "MAIL", "--key", "order-17", "--due", "1h"]);
    let found = run(path, &server.api(&["jobs", "find", "order-17"]));
    assert!(found.status.success() && text(&found.stdout).contains("order-17"), "{found:?}");
    assert!(text(&found.stderr).contains("payloads were not searched"), "{found:?}");
    let (status, error) = code(path, &server.api(&["jobs", "find", "elsewhere"]));
    assert!(status == 1 && error.contains("needs the role reader"), "{status}: {error}");

    std::fs::write(path.join("token.txt"), "short\n").unwrap();
    let (status, error) = code(path, &["serve"]);
    assert_eq!(status, 2);
    assert!(error.contains("serve.tokens.grafana: a token has 5 bytes"), "{error}");
}

/// The configuration of a worker's token, with this table.
fn configure_worker(directory: &std::path::Path, secret: &str, table: &str) {
    let backend = "[backend]\ntype = \"sqlite\"\npath = \"dq.db\"";
    let serve = format!("[serve]\nsecret = \"{secret}\"\n[serve.tokens.mailer]\n{table}");
    let toml = format!("{backend}\n{serve}");
    std::fs::write(directory.join("dq.toml"), toml).unwrap();
}

#[test]
fn a_worker_claims_from_its_queues_and_settles_after_a_restart() {
    const TOKEN: &str = "0123456789abcdef";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let table = |rest: &str| format!("token = \"{TOKEN}\"\n{rest}");
    for (rest, message) in [
        ("role = \"worker\"", "serve.tokens.mailer: the role worker has no queues"),
        ("role = \"viewer\"\nqueues = [\"MAIL\"]", "`queues` belongs to the role worker"),
    ] {
        configure_worker(path, "one secret", &table(rest));
        let (status, error) = code(path, &["serve"]);
        assert!(status == 2 && error.contains(message), "{error}");
    }
    let start = |secret| {
        configure_worker(path, secret, &table("role = \"worker\"\nqueues = [\"MAIL\"]"));
        let mut server = Server::start_as_configured(path, &["--address", "127.0.0.1:0"]);
        server.token = Some(TOKEN.to_owned());
        server
    };
    let server = start("one secret");
    ok(path, &["enqueue", "MAIL", "--key", "k"]);
    let claimed = server.post("v1/claims", r#"{"queues": {"MAIL": 1}}"#);
    let done = format!(
        r#"{{"results": [{{"lease": {}, "outcome": "done"}}]}}"#,
        claimed["jobs"][0]["lease"]
    );
    let refused = server.post("v1/claims", r#"{"queues": {"SMS": 1}}"#);
    assert_eq!(refused["status"], 403, "{refused}");
    drop(server);
    let other = start("another secret");
    let stranger = other.post("v1/leases:settle", &done);
    assert_eq!(stranger["results"][0]["result"], "refused", "{claimed} {stranger}");
    drop(other);
    let again = start("one secret");
    assert_eq!(again.post("v1/leases:settle", &done)["results"][0]["result"], "settled");
}
