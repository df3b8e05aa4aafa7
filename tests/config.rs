//! The configuration as a program meets it: a file, the environment, secrets.

use std::process::Command;

use dq::ErrorKind;
use dq::config::Config;
use dq::prelude::*;

const FILE: &str = r#"
[backend]
type = "sqlite"
path = "${DQ_DATA}/jobs.db"

[queues.ORDER_TIMEOUT]
concurrency = 16
"#;

/// Runs this very test again in a process of its own, whose environment can be chosen, and returns
/// what it printed.
fn again(file: &str, environment: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dq.toml");
    std::fs::write(&path, file).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_of_its_own", "--nocapture"])
        .env("TEST_CONFIG", &path)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Not a test by itself: it tells how it reads the configuration that it is given, if it is.
#[test]
fn a_process_of_its_own() {
    let Ok(path) = std::env::var("TEST_CONFIG") else { return };
    match Config::from_path(path) {
        Ok(config) => println!("{config:#?}"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn the_environment_wins_over_the_file_and_fills_its_gaps() {
    let seen = again(
        FILE,
        &[
            ("DQ_DATA", "/var/lib/shop"),
            ("DQ_QUEUES__ORDER_TIMEOUT__CONCURRENCY", "4"),
            ("DQ_QUEUES__ORDER_TIMEOUT__TIMEOUT", "2m"),
            ("DQ_QUEUES__Mixed_Case__LEASE", "1m"),
            ("DQ_RUNNER__GRACE", "5s"),
        ],
    );
    for needle in ["/var/lib/shop/jobs.db", "4,", "120s", "\"Mixed_Case\"", "grace: 5s"] {
        assert!(seen.contains(needle), "{needle} is missing in {seen}");
    }
    assert!(!seen.contains("16,"), "{seen}");
}

#[test]
fn a_typo_in_the_environment_is_refused_like_one_in_the_file() {
    let data = ("DQ_DATA", "/tmp");
    let seen = again(FILE, &[data, ("DQ_QUEUES__ORDER_TIMEOUT__CONCURENCY", "4")]);
    assert!(seen.contains("refused") && seen.contains("`concurrency`"), "{seen}");
    let seen = again(FILE, &[]);
    assert!(seen.contains("refused") && seen.contains("\"DQ_DATA\""), "{seen}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::from_path("/nowhere/dq.toml").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("/nowhere/dq.toml"), "{error}");
}

#[tokio::test]
async fn wrong_urls_are_answered_with_what_would_be_right() {
    for (url, needles) in [
        ("mongodb://localhost", ["\"mongodb\"", "memory, sqlite"]),
        ("jobs.db", ["no scheme", "sqlite://jobs.db"]),
        ("sqlite://", ["path", "sqlite"]),
        ("sqlite://x.db?durabilty=full", ["durabilty", "durability"]),
        ("memory:?size=3", ["size", "none"]),
    ] {
        let error = Dq::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let text = error.to_string();
        assert!(needles.iter().all(|needle| text.contains(needle)), "{url}: {text}");
    }
}
