//! The programs for database drivers: the job exists with the order's row, and ends with its change.

use std::path::Path;
use std::process::Command;

use dq_servers::shared_postgres;

/// Builds the program, which is in a workspace of its own, and returns its output.
fn run(program: &str, url: &str, dir: &Path) -> String {
    let target = std::env::current_exe().expect("the test knows its own path");
    let target = target.ancestors().nth(3).expect("tests are in TARGET/PROFILE/deps");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/transactions/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--locked",
            "--manifest-path",
            manifest,
            "--bin",
            program,
            "--",
            url,
        ])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(dir)
        .output()
        .expect("cargo starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {error}");
    String::from_utf8(output.stdout).expect("the output is text")
}

#[test]
fn orders_and_jobs_share_postgres_transactions() {
    let postgres = shared_postgres();
    let dir = tempfile::tempdir().unwrap();
    for program in ["sqlx_postgres", "sea_orm", "diesel_async", "tokio_postgres"] {
        let url = postgres.create_database();
        assert_eq!(run(program, &url, dir.path()), "1 job\norder 1: cancelled\n", "{program}");
        let rows = postgres.psql(&url, "SELECT id, state FROM orders").unwrap();
        assert_eq!(rows.trim(), "1|cancelled", "{program}");
        let jobs = postgres.psql(&url, "SELECT count(*) FROM dq.job").unwrap();
        assert_eq!(jobs.trim(), "0", "{program}: the job ended with the order");
    }
}

#[test]
fn orders_and_jobs_share_sqlite_transactions() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run("sqlx_sqlite", "sqlite:shop.db", dir.path()), "1 job\norder 1: cancelled\n");
    assert_eq!(crate::server::stored_in(&dir.path().join("shop.db"), "ORDER_TIMEOUT"), 0);
}
