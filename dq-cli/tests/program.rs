use std::io::{Read, Write};
use std::process::Stdio;

use crate::support::{Server, code, dq, ok, run, text};
use serde_json::Value;

#[test]
fn each_exit_code_is_that_of_the_guide() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let url = &["--url", "sqlite://jobs.db"];
    let (status, error) = code(path, &["queues"]);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("there is no store"), "{error}");
    let (status, error) = code(path, &[&["queues"], &url[..]].concat());
    assert_eq!(status, 2, "{error}");
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0, "a command creates no store");
    drop(Server::start(path, url));

    assert_eq!(code(path, &[&["queues"], &url[..]].concat()).0, 0);
    assert_eq!(code(path, &["--help"]).0, 0);
    assert_eq!(code(path, &["nonsense"]).0, 2);
    assert_eq!(code(path, &["where", "MAIL", "order-1"]).0, 2);
    assert_eq!(code(path, &["queues", "--url", "sqlite://jobs.db", "--config", "x"]).0, 2);
    assert_eq!(code(path, &["queues", "--config", "missing.toml"]).0, 2);
    assert_eq!(code(path, &[&["where", "MAIL", "key:k"], &url[..]].concat()).0, 3);
    ok(path, &[&["enqueue", "MAIL", "--key", "k"], &url[..]].concat());
    let job: Value =
        serde_json::from_str(&ok(path, &[&["jobs", "ls", "--json"], &url[..]].concat())).unwrap();
    let id = job["id"].as_str().unwrap();
    assert_eq!(code(path, &[&["jobs", "replay", "MAIL", id], &url[..]].concat()).0, 4);
    assert_eq!(code(path, &["queues", "--url", "redis://127.0.0.1:1/0"]).0, 5);
    assert_eq!(code(path, &["queues", "--api", "http://127.0.0.1:1"]).0, 5);
    let (status, error) = code(path, &["serve", "--address", "256.0.0.1:0"]);
    assert_eq!(status, 1, "{error}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(Server::start(path, &[]));
    for key in ["a", "b"] {
        ok(path, &["enqueue", "MAIL", "--key", key, "--due", "1d"]);
    }
    for line in [&["jobs", "ls", "--json"][..], &["jobs", "ls"], &["completions", "zsh"]] {
        let mut command = dq(path);
        command.args(line).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Close the pipe first, so that the first write fails.
        drop(child.stdout.take());
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!((child.wait().unwrap().code(), error.as_str()), (Some(0), ""), "{line:?}");
    }
}

#[test]
fn a_token_may_begin_with_a_hyphen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &["--token", "-sixteen-characters"]);
    ok(path, &["queues", "--api", &server.address, "--token", "-sixteen-characters"]);
    let (status, error) = code(path, &["enqueue", "MAIL", "1", "--url", "memory:"]);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("ends with this command"), "{error}");
    let (status, error) = code(path, &["queues", "--token", "--api", &server.address]);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("the token is missing"), "{error}");
}

#[test]
fn output_that_is_piped_has_no_colours() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &[]);
    ok(path, &server.api(&["enqueue", "MAIL", "--key", "k", "--due", "1d"]));
    for line in [&["queues"][..], &["jobs", "ls"], &["where", "MAIL", "key:k"], &["nonsense"]] {
        let output = run(path, &server.api(line));
        let all = [output.stdout, output.stderr].concat();
        assert!(!all.is_empty() && !all.contains(&0x1b), "{line:?}: {}", text(&all));
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(ok(path, &["completions", shell]).contains("enqueue"), "{shell}");
    }
}

#[test]
fn the_environment_names_a_server_unless_the_arguments_name_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path, &["--url", "sqlite://served.db"]);
    drop(Server::start(path, &["--url", "sqlite://other.db"]));
    ok(path, &server.api(&["enqueue", "SERVED", "--due", "1d"]));
    let queues = |args: &[&str]| {
        let mut command = dq(path);
        command.env("DQ_API", &server.address).env("DQ_TOKEN", server.token.as_ref().unwrap());
        let output = command.arg("queues").args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(queues(&[]).contains("SERVED"));
    assert_eq!(queues(&["--url", "sqlite://other.db"]), "");
}

#[test]
fn a_purge_reads_the_name_of_the_queue() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(Server::start(path, &[]));
    ok(path, &["enqueue", "MAIL", "--due", "1d"]);
    let purge = |typed: &str| {
        let mut command = dq(path);
        command.args(["purge", "MAIL"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), text(&output.stdout))
    };
    for wrong in ["", "\n", "mail\n", "MAIL \n"] {
        assert_eq!(purge(wrong), (Some(4), String::new()), "{wrong:?}");
    }
    assert_eq!(purge("MAIL\n"), (Some(0), "deleted 1 job of MAIL\n".to_owned()));
}

#[test]
fn a_payload_may_be_as_large_as_the_settings_allow() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let config = "[backend]\ntype = \"sqlite\"\npath = \"jobs.db\"\n[limits]\npayload = 8388608\n";
    std::fs::write(path.join("dq.toml"), config).unwrap();
    drop(Server::start(path, &[]));
    let mut child = dq(path).args(["enqueue", "MAIL", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let payload = format!("\"{}\"", "x".repeat(4 << 20));
    child.stdin.take().unwrap().write_all(payload.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}
