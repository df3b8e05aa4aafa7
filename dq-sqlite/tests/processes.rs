//! Several processes on one file, a killed process, and files without write access.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::{Fixture, claim, queue, real_environment, settle, stats};
use dq_core::{Backend, Due, ErrorKind, JobId, JobRef, JobState, NewJob, Verdict};
use dq_sqlite::{SqliteBackend, SqliteConfig};

const PATH: &str = "DQ_SQLITE_TEST_PATH";

/// A child process: this test binary or a copy, running one of its ignored tests on the file.
fn child(program: &Path, test: &str, path: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", &format!("processes::{test}"), "--nocapture"]);
    command.env(PATH, path);
    command
}

fn path_from_parent() -> PathBuf {
    std::env::var_os(PATH).expect("this test is started by another test").into()
}

/// Child process: prints each acknowledged call until it is killed.
#[tokio::test]
#[ignore = "is started by `acknowledged_writes_survive_a_kill`"]
async fn child_writes_until_killed() {
    let environment = real_environment();
    let config = SqliteConfig::new(path_from_parent());
    let backend = Arc::new(SqliteBackend::open(&config, &environment).await.unwrap());
    for _ in 0..8 {
        let (backend, environment) = (Arc::clone(&backend), environment.clone());
        tokio::spawn(async move {
            loop {
                let id = environment.entropy.job_id(environment.clock.now());
                let job = NewJob::new(id, queue(), Due::NOW, vec![1; 700].into());
                let _ = backend.schedule(vec![job]).await.unwrap();
                report("scheduled", id);
            }
        });
    }
    loop {
        for leased in claim(&*backend, 5).await.jobs {
            settle(&*backend, &leased, Verdict::Done).await;
            report("done", leased.job.id);
        }
    }
}

fn report(word: &str, id: JobId) {
    std::io::stdout().write_all(format!("{word} {id}\n").as_bytes()).unwrap();
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let fixture = Fixture::new();
    let this = std::env::current_exe().unwrap();
    let mut command = child(&this, "child_writes_until_killed", &fixture.path());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (mut scheduled, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut killed = false;
    while let Some(Ok(line)) = lines.next() {
        match line.split_once(' ') {
            Some(("scheduled", id)) => scheduled.extend(id.parse::<JobId>()),
            Some(("done", id)) => done.extend(id.parse::<JobId>()),
            _ => continue,
        };
        if scheduled.len() >= 500 && done.len() >= 20 && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child exited before the kill, after {} jobs", scheduled.len());

    let config = fixture.config();
    let backend = SqliteBackend::open(&config, &real_environment()).await.unwrap();
    for id in &scheduled {
        let found = backend.get(&JobRef::new(queue(), *id)).await.unwrap();
        let found = found.filter(|view| view.state != JobState::Ended);
        // The child may have been killed between its last settlement and the report.
        if found.is_none() && !done.contains(id) {
            let totals = stats(&backend).await.totals.unwrap();
            assert_eq!(totals.done as usize, done.len() + 1, "{id} is lost");
        }
    }
    for id in &done {
        let found = backend.get(&JobRef::new(queue(), *id)).await.unwrap();
        assert!(found.is_none_or(|view| view.state == JobState::Ended), "{id} is back");
    }
    let conn = fixture.conn();
    let verdict: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    // The killed process still holds leases; all other jobs can be claimed.
    let counts = stats(&backend).await;
    assert_eq!(claim(&backend, 10_000).await.jobs.len() as u64, counts.ready);
}

#[tokio::test]
#[ignore = "is started by `a_file_that_cannot_be_written_is_read_only`"]
async fn child_opens_a_read_only_file() {
    let config = SqliteConfig::new(path_from_parent());
    let error = SqliteBackend::open(&config, &real_environment()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_read_only() {
    for (file, directory) in [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)] {
        open_without_write_access(file, directory).await;
    }
}

async fn open_without_write_access(file: u32, directory: u32) {
    const NOBODY: u32 = 65_534;
    let fixture = Fixture::new();
    fixture.open().await.close().await.unwrap();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&fixture.path(), file);
    set_mode(fixture.dir.path(), directory);
    // Root can write every file. Another user may not enter root's home directory, where this
    // program may be.
    let elsewhere = tempfile::tempdir().unwrap();
    set_mode(elsewhere.path(), 0o755);
    let program = elsewhere.path().join("test");
    // A separate process copies it: a child of another test, started while this process had the
    // copy open, would inherit it, and nobody can run a program that is open for writing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut child = child(&program, "child_opens_a_read_only_file", &fixture.path());
    child.current_dir("/");
    if std::fs::metadata(fixture.path()).unwrap().uid() == 0 {
        child.uid(NOBODY);
    }
    let output = child.output().unwrap();
    set_mode(fixture.dir.path(), 0o755);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{file:o} in {directory:o}: {stdout}{output:?}");
}
